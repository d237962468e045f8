"""Ranks that a test starts as torchrun does, without a launcher that would end the others."""

import os
import socket
import subprocess
import sys
import time


class Ranks:
    """Processes of a job of `size` ranks on this node, which are started one by one."""

    def __init__(self, size):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.common = {
            "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }
        self.processes = []

    def start(self, program, *arguments, **variables):
        """Starts the next rank, with more environment variables."""
        number = len(self.processes)
        given = {"RANK": number, "LOCAL_RANK": number, **self.common, **variables}
        environment = {**os.environ, **{name: str(value) for name, value in given.items()}}
        command = [sys.executable, program, *arguments]
        self.processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                                               stderr=subprocess.STDOUT, text=True))

    def outputs(self):
        """What each rank has printed when all have ended."""
        until = time.monotonic() + 300
        try:
            return [it.communicate(timeout=until - time.monotonic())[0] for it in self.processes]
        finally:
            for process in self.processes:
                process.kill()
