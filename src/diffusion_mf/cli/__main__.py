"""``python -m diffusion_mf.cli``: the command line without its console script."""

from diffusion_mf.cli import main

if __name__ == "__main__":
    main()
