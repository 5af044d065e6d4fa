"""An HTTP server for taggers: JSON in and out, requests of many clients batched together.

`application.make_application` is the ASGI application, `run.serve` is what ``dmf serve`` calls. It needs
``pip install 'diffusion-mf[server]'``.
"""
