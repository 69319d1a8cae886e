"""What a program may read: the interpreter, the standard library and the allow-listed distributions.

The list is of files and folders, not of import statements: the tiers mount it (nsjail) or allow reading it (Landlock).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from retool_env.errors import ConfigurationError, SandboxUnavailableError


@dataclass(frozen=True)
class Inventory:
    """The readable world of one interpreter.

    Attributes:
        executable: The base interpreter (not a virtual environment's link to it).
        version: Its version, ``"3.12.1"``.
        folders: Folders readable as a whole, apart from ``masked``.
        files: Single readable files.
        masked: Folders inside ``folders`` that stay out of reach: other people's site-packages.
        modules: Module name -> folder or file, for the allow-listed distributions; dotted below shared namespaces.
        distributions: Name -> version of the allow-listed distributions that are installed.
        library_path: Folder of the interpreter's own shared library, or an empty string where it has none. The
            loader is told of it, as it was perhaps told through an environment that programs do not get.
    """

    executable: str
    version: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    masked: tuple[str, ...]
    modules: dict[str, str]
    distributions: dict[str, str]
    library_path: str

    def open_to_all(self) -> bool:
        """Whether any user can read it; an interpreter in a closed home folder is not."""
        for path in (*self.folders, *self.files, *self.modules.values()):
            for part in (Path(path), *Path(path).parents):
                mode = part.stat().st_mode
                if not mode & (0o001 if part.is_dir() else 0o004):
                    return False
        return True


def take(packages: tuple[str, ...], python: str | None) -> Inventory:
    """Takes the inventory of this interpreter, or of another virtual environment's.

    Raises:
        ConfigurationError: ``python`` is not an interpreter of a supported version.
    """
    if python is None:
        return _take_here(packages, tuple(sys.path))
    return _take_elsewhere(packages, python)


@cache
def _take_elsewhere(packages: tuple[str, ...], python: str) -> Inventory:
    root = str(Path(__file__).resolve().parents[2])
    script = (
        "import sys, json; sys.path.append(sys.argv[1]); from retool_env.sandbox import inventory;"
        "print(inventory.as_json(tuple(json.loads(sys.argv[2]))))"
    )
    command = [python, "-I", "-c", script, root, json.dumps(packages)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise ConfigurationError(f"python: there is no interpreter at {python!r}") from error
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", "") or str(error)).strip()[-300:]
        raise ConfigurationError(
            f"python: {python!r} cannot be used (Python 3.11 or later is needed): {detail}"
        ) from error
    fields = json.loads(done.stdout)
    for name in ("folders", "files", "masked"):
        fields[name] = tuple(fields[name])
    return Inventory(**fields)


def as_json(packages: tuple[str, ...]) -> str:
    """Takes the inventory of the running interpreter, as JSON (run inside the other interpreter)."""
    return json.dumps(asdict(_take_here(packages, tuple(path for path in sys.path[:-1] if path))))


@cache
def _take_here(packages: tuple[str, ...], search: tuple[str, ...]) -> Inventory:
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    folders, files = _interpreter_paths()
    modules, distributions = _distribution_paths(packages, search)
    masked = sorted({str(path) for folder in folders for path in _site_folders(Path(folder))})
    version = ".".join(map(str, sys.version_info[:3]))
    return Inventory(
        executable,
        version,
        tuple(folders),
        (executable, *files),
        tuple(masked),
        modules,
        distributions,
        _library_path(),
    )


def _interpreter_paths() -> tuple[list[str], list[str]]:
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    platstdlib = Path(sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})).resolve()
    folders = [stdlib]
    if platstdlib != stdlib and platstdlib.is_dir():
        folders.append(platstdlib)
    libraries = Path(sys.base_prefix, "lib").resolve()
    if sys.base_prefix in ("/usr", "/usr/local"):
        files = [str(path) for path in sorted(libraries.glob("libpython3*.so*"))]
    else:  # pyenv, conda, uv: a prefix of its own, whose lib folder holds what the interpreter links against
        folders, files = [libraries, *(folder for folder in folders if libraries not in folder.parents)], []
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    for name in (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64"):
        if Path(name).is_dir():
            folders.append(Path(name))
    extra = ["/etc/ld.so.cache", "/usr/share/zoneinfo"]
    files += [path for path in extra if Path(path).is_file()]
    folders += [Path(path) for path in extra if Path(path).is_dir()]
    return [str(folder) for folder in folders], files


def _library_path() -> str:
    folder = os.path.join(sys.base_prefix, "lib")
    name = sysconfig.get_config_var("INSTSONAME") or ""
    return folder if ".so" in name and os.path.exists(os.path.join(folder, name)) else ""


def _site_folders(folder: Path) -> list[Path]:
    names = ("site-packages", "dist-packages")
    found = [folder / name for name in names]
    found += [path / name for path in folder.glob("python*") for name in names]
    return [path.resolve() for path in found if path.is_dir()]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution_paths(packages: tuple[str, ...], search: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    installed: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions(path=list(search)):
        name = distribution.metadata["Name"]
        if name:
            installed.setdefault(_canonical(name), distribution)
    modules: dict[str, str] = {}
    versions: dict[str, str] = {}
    asked = [_canonical(name) for name in packages]
    waiting = list(asked)
    while waiting:
        name = waiting.pop()
        if name in versions or name not in installed:
            continue
        distribution = installed[name]
        found = _modules_of(distribution)
        if not found and name in asked:
            raise ConfigurationError(
                f"packages: {name!r} is installed in a way that lists no files (an editable install?), so what it may "
                "read is not known; install it as a wheel"
            )
        versions[name] = distribution.version
        modules.update(found)
        waiting += _requirements(distribution)
    return dict(sorted(modules.items())), dict(sorted(versions.items()))


def _requirements(distribution: metadata.Distribution) -> list[str]:
    names = []
    for requirement in distribution.requires or ():
        head, _, marker = requirement.partition(";")
        match = re.match(r"\s*([A-Za-z0-9._-]+)", head)
        if match and "extra" not in marker:
            names.append(_canonical(match.group(1)))
    return names


def _modules_of(distribution: metadata.Distribution) -> dict[str, str]:
    """Maps the modules of a distribution to their paths; library folders (numpy.libs) are included.

    A folder without a file of the distribution's own directly in it is a namespace that others share: what is below it
    is listed instead, under dotted names.
    """
    files = [file.parts for file in distribution.files or () if file.parts[0] not in ("..", "/")]
    files = [parts for parts in files if not parts[0].endswith((".dist-info", ".egg-info", ".pth"))]
    found: dict[str, str] = {}
    waiting: set[tuple[str, ...]] = {parts[:1] for parts in files}
    while waiting:
        place = waiting.pop()
        below = [parts for parts in files if parts[: len(place)] == place]
        if place[-1] == "__pycache__":
            continue
        path = Path(str(distribution.locate_file("/".join(place)))).resolve()
        if path.is_dir() and not any(len(parts) == len(place) + 1 for parts in below):
            waiting |= {parts[: len(place) + 1] for parts in below}
        elif path.is_dir():
            found[".".join(place)] = str(path)
        elif path.suffix in (".py", ".so"):
            found[".".join((*place[:-1], place[-1].split(".")[0]))] = str(path)
    return found


def default_preload(inventory: Inventory) -> tuple[str, ...]:
    """Returns the modules worth importing once for all programs."""
    return tuple(name for name in ("numpy", "sympy") if name in inventory.modules)


def check_preload(preload: tuple[str, ...], inventory: Inventory) -> None:
    """Checks that modules to preload are allow-listed or in the standard library.

    Raises:
        SandboxUnavailableError: One is neither.
    """
    for name in preload:
        top = name.split(".")[0]
        if not any(listed.split(".")[0] == top for listed in inventory.modules) and top not in sys.stdlib_module_names:
            raise SandboxUnavailableError(f"preload: {name!r} is not in the allow-listed, installed packages")
