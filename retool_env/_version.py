"""The package's version: of the installed distribution, so that it is written in one place (``pyproject.toml``)."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("retool-env")
except PackageNotFoundError:  # a source tree on the path, never installed
    __version__ = "0+unknown"
