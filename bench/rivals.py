"""Environments in which rivals are measured: made once, kept outside of the clone."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "rivals"
INSTALL_S = 1200.0


def rival_python(name: str) -> Path:
    """Return the Python of an environment with what `bench/rivals/<name>.txt` pins.

    Raises:
        subprocess.CalledProcessError: It cannot be made; its output tells why.
    """
    pins = FOLDER / f"{name}.txt"
    digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "primusd-bench" / f"{name}-{digest}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    uv = Path(sys.executable).parent / "uv"
    install = [uv, "pip", "install", "-q", "--system-certs", "--compile-bytecode"]
    for command in (
        [uv, "venv", "-q", "--clear", "--python", sys.executable, folder],
        [*install, "--python", python, "-r", pins],
    ):
        subprocess.run(command, check=True, timeout=INSTALL_S)
    (folder / "complete").touch()
    return python
