"""A cable of some milliseconds between two hosts: it carries frames of two TAP devices.

Run by `tests.support.hosts` in a process of its own. How much it carries is the
kernel's to say: each device has a token bucket (`tc ... tbf`).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
TAP_NO_INFO = 0x1002  # IFF_TAP | IFF_NO_PI
CLONE_NEWNET = 0x40000000
LARGEST = 1 << 16
MOST_WAITING = 4000  # frames in the queue; more are dropped, as by any network device


def open_tap(name: str) -> int:
    """Opens a TAP device of this network namespace."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), TAP_NO_INFO))
    return descriptor


def enter(namespace: str) -> None:
    """Enters another network namespace, by its path."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as place:
        if libc.setns(place.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def carry(here: int, there: int, delay_s: float) -> None:
    """Carries frames both ways until it is killed.

    Args:
        here: Descriptor of a TAP device.
        there: Descriptor of the other device.
        delay_s: Delay of each frame.
    """
    ways: dict[int, tuple[int, deque[tuple[float, bytes]]]] = {
        here: (there, deque()), there: (here, deque()),
    }  # fmt: skip
    while True:
        waiting = [frames[0][0] for _, frames in ways.values() if frames]
        left_s = max(0.0, min(waiting) - time.monotonic()) if waiting else None
        readable, _, _ = select.select([*ways], [], [], left_s)
        now = time.monotonic()
        for source in readable:
            frames = ways[source][1]
            try:
                while True:
                    frame = os.read(source, LARGEST)
                    if len(frames) < MOST_WAITING:
                        frames.append((now + delay_s, frame))
            except BlockingIOError:
                pass
        for target, frames in ways.values():
            while frames and frames[0][0] <= now:
                try:
                    os.write(target, frames.popleft()[1])
                except OSError:  # the other end is not up, or has no room
                    break


def main() -> None:
    """Opens both ends, reports it, and carries frames."""
    near, far, namespace, delay_s = sys.argv[1:]
    here = open_tap(near)
    enter(namespace)
    there = open_tap(far)
    print("ready", flush=True)
    carry(here, there, float(delay_s))


if __name__ == "__main__":
    main()
