"""`python -m fairtape` is the console script `fairtape`."""

from fairtape.cli import main

if __name__ == "__main__":
    main()
