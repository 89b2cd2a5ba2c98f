"""Shell functions that end all descendants of a process, on any host. Pure.

All descendants of a process inherit its environment, and with it a unique
mark. The mark finds them anywhere: a session of its own leaves the process group,
but keeps the mark. Systems without /proc show no environment of other processes; there
only a process group is found.
"""

from __future__ import annotations

ENDING = """
left() { grep -lsxzF "$mark=1" /proc/[0-9]*/environ; }
tell() {
    for each in $(left); do
        each=${each%/environ}
        kill -s "$1" "${each#/proc/}"
    done
}
finish() {
    tell TERM
    sleep "$grace" &
    timer=$!
    while [ -n "$(left)" ] || kill -0 $child; do
        kill -0 $timer || break
        sleep 0.1
    done
    kill $timer && return
    for turn in 1 2 3; do
        [ -n "$(left)" ] || break
        tell KILL
        sleep 0.1
    done
    return 1
}
"""
"""`finish` ends all processes with the mark `$mark`, with SIGKILL after `$grace`
seconds, and also waits for the process `$child`, if there is one. It returns 1 if the
time was not enough. Shells show the environment they were started with: the shell that
makes a mark does not carry it."""

MARK = "mark=SHOAL_LAUNCH_$$_${told##*.}"
"""Makes the mark from the name of a folder of `mktemp`, so that marks are unique."""
