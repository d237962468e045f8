"""Calls a function of a file, for ``hwsim.run``: ``python -m hwsim._call FILE NAME ARGUMENTS``."""

from __future__ import annotations

import base64
import importlib.util
import os
import pickle
import sys


def main() -> None:
    file, name, passed = sys.argv[1:]
    # As for a program in that file.
    sys.path.insert(0, os.path.dirname(file))
    module_name = os.path.splitext(os.path.basename(file))[0]
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no file in Python")
    module = importlib.util.module_from_spec(spec)
    # Before it runs: arguments may be of its classes.
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    getattr(module, name)(*pickle.loads(base64.b64decode(passed)))


if __name__ == "__main__":
    main()
