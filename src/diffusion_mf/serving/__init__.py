"""An HTTP server for taggers: JSON in and out, requests of many clients batched together.

`application.make_application` is the ASGI application, `run.serve` is what ``dmf serve`` calls.
"""

from diffusion_mf.errors import InputError

try:
    import fastapi
    import prometheus_client
    import uvicorn
except ImportError:
    raise InputError(
        "the server needs FastAPI, uvicorn and prometheus-client", remedy="pip install 'diffusion-mf[server]'"
    ) from None

del fastapi, prometheus_client, uvicorn
