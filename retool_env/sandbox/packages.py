"""Importing what is allowed: the finder of the allow-listed distributions, inside the sandbox.

Standard library only: this file is shipped into the sandbox.
"""

import importlib.machinery
import importlib.util
import os
from types import ModuleType


class AllowedPackages:
    """A meta path finder for the allow-listed distributions, whose parent folder may not be listed or read.

    Attributes:
        modules: Module name -> path of its package folder or of its single file. A dotted name is a part of a namespace
            that several distributions share.
    """

    def __init__(self, modules: dict[str, str]):
        self.modules = modules

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a listed module; submodules are found by Python's own finder in the package's folder."""
        location = self.modules.get(name)
        if location is None:
            if not any(listed.startswith(name + ".") for listed in self.modules):
                return None
            namespace = importlib.machinery.ModuleSpec(name, None, is_package=True)
            namespace.submodule_search_locations = []
            return namespace
        if os.path.isdir(location):
            start = os.path.join(location, "__init__.py")
            if os.path.exists(start):
                return importlib.util.spec_from_file_location(name, start, submodule_search_locations=[location])
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [location]
            return spec
        return importlib.util.spec_from_file_location(name, location)
