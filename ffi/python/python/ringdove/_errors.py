"""What goes wrong, as exceptions that know what they were told."""

from __future__ import annotations

import builtins


class Error(Exception):
    """Any failure of the library.

    Attributes (``None`` where they say nothing):
        rank: the rank that reports
        peer: the rank that it is about
        op: the argument, quantity, wait or driver call that it is about
        expected, seen: the two values
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        peer: int | None = None,
        op: str | None = None,
        expected: object = None,
        seen: object = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.op = op
        self.expected = expected
        self.seen = seen


class ArgumentError(Error, ValueError):
    """An argument, or a setting, that cannot be. The communicator stays usable."""


class DisagreementError(Error):
    """Ranks made calls that do not match. The communicator has ended on all of them."""


class WaitExpiredError(Error, TimeoutError):
    """A rank waited in vain: for data, or for ranks to join."""


class ConnectionError(Error, builtins.ConnectionError):  # noqa: A001
    """A rank was lost, cannot be reached, or sent what cannot be true."""


class AbortedError(Error):
    """Somebody ended the communicator."""


class StaleRegistrationError(Error):
    """A registered array was freed while it was registered."""


class NotFoundError(Error):
    """A driver, a device or a library is not there."""


class CudaError(Error, RuntimeError):
    """A call of the CUDA driver failed."""


class ForkError(Error, RuntimeError):
    """The process was forked from one that uses CUDA already, which does not survive that."""


class ClosedError(Error, RuntimeError):
    """The communicator was closed."""
