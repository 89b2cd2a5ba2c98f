"""Ways in: an OpenSSH configuration for the cluster, and its known hosts. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.clusters.aws.members import KEY, MASTER, Member
from shoal.clusters.ssh import SSH

NOTE = "# Written by `shoal cluster up`, anew each time."


def ssh_config(
    members: Sequence[Member],
    aliases: Mapping[str, str],
    *,
    user: str,
    key: str,
    known_hosts: Path,
    session: Sequence[str] = (),
) -> str:
    """Returns the configuration: an alias a node, by a jump through the master.

    Args:
        members: Members, the master first.
        aliases: Instance -> its alias.
        user: Login user of the image.
        key: Path of the private key; "" for those of the agent.
        known_hosts: File of the host keys.
        session: Words of the AWS command line before "ssm", for Session Manager.
    """
    lines = [NOTE]
    master = next((one for one in members if one.role == MASTER), None)
    for member in members:
        alias = aliases[member.instance]
        lines += ["", f"Host {alias}"]
        if session:
            lines.append(f"    HostName {member.instance}")
            lines.append(f"    ProxyCommand {_session(session)}")
        elif member is master:
            lines.append(f"    HostName {member.public or member.private}")
        else:
            lines.append(f"    HostName {member.private}")
            if master is not None:
                lines.append(f"    ProxyJump {aliases[master.instance]}")
        lines += [
            f"    HostKeyAlias {member.instance}",
            f"    User {user}",
            f'    UserKnownHostsFile "{known_hosts}"',
            "    StrictHostKeyChecking yes",
        ]
        if key:
            lines += [f'    IdentityFile "{key}"', "    IdentitiesOnly yes"]
    return "\n".join([*lines, ""])


def _session(words: Sequence[str]) -> str:
    named = [*words, "ssm", "start-session", "--target", "%h", "--document-name",
             "AWS-StartSSHSession", "--parameters", "portNumber=%p"]  # fmt: skip
    return shlex.join(named)


def known_hosts_of(members: Sequence[Member]) -> str:
    """Returns the file of host keys, by instance: EC2 gives addresses again."""
    lines = [
        f"{member.instance} {key}"
        for member in members
        for key in member.keys
        if re.match(KEY, key)
    ]
    return "".join(f"{line}\n" for line in lines)


def ssh_command(config: Path) -> str:
    """Returns the command that reaches nodes by their aliases."""
    program, *options = SSH
    return shlex.join([program, "-F", str(config), *options])
