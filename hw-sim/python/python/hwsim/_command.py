"""Where the command ``hwsim`` is."""

from __future__ import annotations

import os
import shutil
import sysconfig


def command() -> str:
    """Path of the command ``hwsim`` that was installed with this package.

    Raises:
        FileNotFoundError: it is neither beside this Python nor on the search path
    """
    beside = os.path.join(sysconfig.get_path("scripts"), "hwsim")
    found = beside if os.access(beside, os.X_OK) else shutil.which("hwsim")
    if found is None:
        raise FileNotFoundError(f"no command hwsim: neither {beside} nor on PATH")
    return found
