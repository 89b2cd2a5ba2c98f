"""How what a process has started is ended: words of plain `sh`, for any host. Pure.

All that a process starts inherits its environment, and with it a mark that nobody else
has. By that it is found wherever it went: a session of its own leaves the group of
processes, but not the mark. Systems without /proc show nobody's environment; there a
group is all that is found.
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
"""`finish` ends all that have the mark `$mark`, with SIGKILL after `$grace` seconds,
and also waits for the process `$child`, if there is one. It says 1 where the time was
not enough. Shells show the environment that they were started with: whoever makes a
mark does not carry it."""

MARK = "mark=SHOAL_LAUNCH_$$_${told##*.}"
"""From the name of a folder that `mktemp` made, so that no two are alike."""
