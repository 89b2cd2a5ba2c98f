# shellcheck shell=bash disable=SC2154
# The boot of a node, the same for master and workers. Lines before this one set what is
# upper case here. What happens goes to a log in the bucket while it happens, and the
# node's state to nodes/INSTANCE.json, for `shoal cluster up`, `status` and `logs`.
set -euo pipefail
umask 022
FOLDER="s3://$BUCKET/clusters/$CLUSTER/$ID"
LOG=/var/log/shoal-boot.log
exec >>"$LOG" 2>&1
export AWS_DEFAULT_REGION="$REGION" AWS_REGION="$REGION" HOME=/root
PATH="$PATH:/snap/bin" # of Ubuntu's AWS command line
# Credentials that an image left behind must not hide the role of the node.
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_PROFILE
export AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_CONFIG_FILE=/dev/null

if [ -n "$PROXY" ]; then
    export http_proxy="$PROXY" https_proxy="$PROXY"
    export no_proxy="169.254.169.254,localhost,127.0.0.1,s3.$REGION.amazonaws.com,.s3.$REGION.amazonaws.com,.efs.$REGION.amazonaws.com"
    printf '%s\n' "http_proxy=$PROXY" "https_proxy=$PROXY" "no_proxy=$no_proxy" >>/etc/environment
fi

metadata() {
    local token
    token=$(curl -sSf --retry 5 --noproxy '*' -X PUT http://169.254.169.254/latest/api/token \
        -H 'X-aws-ec2-metadata-token-ttl-seconds: 300')
    curl -sSf --retry 5 --noproxy '*' -H "X-aws-ec2-metadata-token: $token" \
        "http://169.254.169.254/latest/meta-data/$1"
}

REASON=''
INSTANCE=$(metadata instance-id)
ADDRESS=$(metadata local-ipv4)

send_log() {
    aws s3 cp --quiet "$LOG" "$FOLDER/logs/$INSTANCE/boot.log" || true
}

# Writes the state of the node, with its SSH host keys: the first connection is checked.
say() {
    STATE=$1 REASON=$REASON INSTANCE=$INSTANCE ADDRESS=$ADDRESS ROLE=$ROLE python3 - <<'PY' |
import glob, json, os, shutil, subprocess
gpus = 0
if shutil.which("nvidia-smi"):
    told = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, check=False)
    gpus = told.stdout.count(b"GPU ")
keys = [open(p).read().split()[:2] for p in sorted(glob.glob("/etc/ssh/ssh_host_*_key.pub"))]
names = {"state": "STATE", "reason": "REASON", "instance": "INSTANCE", "address": "ADDRESS", "role": "ROLE"}
found = {name: os.environ[key] for name, key in names.items()}
print(json.dumps({"form": 1, **found, "gpus": gpus, "keys": [" ".join(key) for key in keys]}))
PY
        aws s3 cp --quiet - "$FOLDER/nodes/$INSTANCE.json"
}

signal() {
    [ -n "$SIGNAL" ] || return 0
    WORD=$1 REASON=$2 INSTANCE=$INSTANCE python3 -c 'import json, os
e = os.environ
print(json.dumps({"Status": e["WORD"], "UniqueId": e["INSTANCE"], "Data": e["INSTANCE"], "Reason": e["REASON"]}))' |
        curl -sSf -o /dev/null --retry 5 -X PUT -H 'Content-Type:' --data-binary @- "$SIGNAL" || true
}

# Prints how many nodes of this role have failed for this reason, this one included.
failures() {
    mkdir -p /opt/shoal/nodes
    aws s3 sync --quiet "$FOLDER/nodes" /opt/shoal/nodes || return 1
    REASON=$REASON ROLE=$ROLE python3 - <<'PY'
import glob, json, os
def read(path):
    try:
        one = json.load(open(path))
        return one["state"], one["reason"], one["role"]
    except (ValueError, LookupError, TypeError):
        return ()
mine = ("failed", os.environ["REASON"], os.environ["ROLE"])
print(sum(read(path) == mine for path in glob.glob("/opt/shoal/nodes/*.json")))
PY
}

# Says why in its object and leaves the group, which starts another node. The third with
# the same reason leaves none, and the stack fails if it is a master. A node that cannot
# write to the bucket stays: nobody could count it.
fail() {
    REASON=$1
    local count=0 size=should
    echo "The boot failed: $REASON"
    if say failed; then count=$(failures) || count=0; fi
    if [ "$KEEP" = no ] && [ "$count" -gt 0 ]; then
        [ "$count" -ge 3 ] || size=no-should
        [ "$size" = no-should ] || signal FAILURE "$REASON"
        echo "Leaves its group; failed so: $count"
        send_log
        aws autoscaling terminate-instance-in-auto-scaling-group --instance-id "$INSTANCE" \
            "--$size-decrement-desired-capacity" || true
    else
        signal FAILURE "$REASON"
    fi
    send_log
    exit 1
}

has() { command -v "$1" >/dev/null; }

get_aws() {
    has aws && return
    if has snap; then snap install aws-cli --classic; else dnf install -y awscli-2; fi
}

get_python() {
    has "python$PYTHON" && "python$PYTHON" -c 'import ensurepip, venv' 2>/dev/null && return
    if has dnf; then
        dnf install -y "python$PYTHON" "python$PYTHON-pip"
    else
        apt-get update -qq && apt-get install -y -qq "python$PYTHON" "python$PYTHON-venv"
    fi
}

mount_files() {
    [ "$FILES" != none ] || return 0
    mkdir -p "$MOUNT"
    local name="$FILES.efs.$REGION.amazonaws.com" line
    if ! has mount.efs && has dnf; then dnf install -y amazon-efs-utils || true; fi
    if has mount.efs; then
        line="$FILES:/ $MOUNT efs tls,_netdev 0 0"
    else
        # Not encrypted on the wire; it stays inside of the security group.
        if has apt-get; then apt-get install -y -qq nfs-common; fi
        line="$name:/ $MOUNT nfs4 nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev 0 0"
    fi
    grep -qF " $MOUNT " /etc/fstab || echo "$line" >>/etc/fstab
    for _ in $(seq 30); do # the name of a new target is known after a while
        mountpoint -q "$MOUNT" || mount "$MOUNT" || { sleep 5; continue; }
        [ -n "$(ls -A "$MOUNT")" ] || chown "$LOGIN" "$MOUNT"
        return 0
    done
    return 1
}

# The lists of nodes follow cluster.json, for every login, `ssh HOST command` and job.
follow_lists() {
    mkdir -p /opt/shoal /etc/ssh/sshd_config.d
    grep -qw "$(uname -n)" /etc/hosts || echo "$ADDRESS $(uname -n)" >>/etc/hosts
    cat >/opt/shoal/write-lists.py <<'PY'
import json, os, re, sys
nodes = json.load(open(sys.argv[1]))["nodes"]
root = sys.argv[2] if len(sys.argv) > 2 else ""
named = [(one["address"], int(one["gpus"])) for one in nodes]
assert all(re.fullmatch(r"[0-9.]{7,15}", address) for address, _ in named)
def write(path, text):
    with open(root + path + ".new", "w") as file:
        file.write(text)
    os.replace(root + path + ".new", root + path)
hosts = open(root + "/etc/hosts").read().partition("# shoal\n")[0]
names = ["master"] + ["worker%d" % n for n in range(1, len(named))]
lines = ["%s deeplearning-%s\n" % (a, n) for (a, _), n in zip(named, names)]
write("/etc/hosts", hosts + "# shoal\n" + "".join(lines))
write("/opt/shoal/workers", "".join(address + "\n" for address, _ in named))
gpus = min([count for _, count in named[1:]] or [named[0][1]])
write("/opt/shoal/lists.sh",
      "export DEEPLEARNING_WORKERS_PATH=/opt/shoal/workers"
      " DEEPLEARNING_WORKERS_COUNT=%d DEEPLEARNING_WORKER_GPU_COUNT=%d\n" % (len(named), gpus))
PY
    cat >/opt/shoal/follow-lists <<SH
#!/bin/bash
export AWS_DEFAULT_REGION=$REGION AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_CONFIG_FILE=/dev/null
PATH="$PATH"
while :; do
    if aws s3 cp --quiet "$FOLDER/cluster.json" /opt/shoal/new.json 2>/dev/null &&
        ! cmp -s /opt/shoal/new.json /opt/shoal/cluster.json; then
        python3 /opt/shoal/write-lists.py /opt/shoal/new.json &&
            cp /opt/shoal/new.json /opt/shoal/cluster.json
    fi
    sleep 10
done
SH
    chmod 755 /opt/shoal/follow-lists
    cat >/etc/systemd/system/shoal-lists.service <<'UNIT'
[Unit]
Description=Lists of the nodes of a Shoal cluster
After=network-online.target
Wants=network-online.target
[Service]
EnvironmentFile=-/etc/environment
ExecStart=/opt/shoal/follow-lists
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
UNIT
    systemctl daemon-reload
    systemctl enable --now shoal-lists.service
    # ssh HOST command reads no profile, unless bash is told to.
    echo 'SetEnv BASH_ENV=/etc/profile.d/shoal.sh' >/etc/ssh/sshd_config.d/10-shoal.conf
    systemctl reload sshd 2>/dev/null || systemctl reload ssh || true
}

# The agent joins the node to Ray, as `up` does; it runs in the login user's name.
start_agent() {
    [ -n "$AGENT" ] || return 0
    aws s3 cp --quiet "$FOLDER/agent-$AGENT" /opt/shoal/agent.py
    echo "$AGENT  /opt/shoal/agent.py" | sha256sum --check --quiet || return 1
    local keeps=true
    [ "$KEEP" = yes ] || keeps=false
    cat >/opt/shoal/agent.json <<JSON
{"id": "$ID", "folder": "$FOLDER", "instance": "$INSTANCE", "address": "$ADDRESS", "role": "$ROLE",
 "secret": "shoal-$CLUSTER-$ID", "signal": "$SIGNAL", "keeps": $keeps,
 "workers": $WORKERS, "least": $LEAST, "settle_s": $SETTLE, "wait_s": $WAIT}
JSON
    cat >/etc/systemd/system/shoal-agent.service <<UNIT
[Unit]
Description=Node of a Shoal cluster
After=network-online.target
Wants=network-online.target
[Service]
User=$LOGIN
EnvironmentFile=-/etc/environment
Environment="PATH=$PATH" AWS_DEFAULT_REGION=$REGION AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_CONFIG_FILE=/dev/null
ExecStart=/usr/bin/env python$PYTHON /opt/shoal/agent.py /opt/shoal/agent.json
KillMode=process
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
UNIT
    systemctl daemon-reload
    systemctl enable --now shoal-agent.service
}

write_profile() {
    {
        echo "export AWS_REGION='$REGION' AWS_DEFAULT_REGION='$REGION'"
        echo "export SHOAL_CLUSTER_NAME='$CLUSTER'"
        echo "export SHOAL_RUNS=\"\${SHOAL_RUNS:-$RUNS}\""
        [ "$FILES" = none ] || echo "export EFS_MOUNT='$MOUNT'"
        [ -z "$PROXY" ] || echo "export http_proxy='$PROXY' https_proxy='$PROXY' no_proxy='$no_proxy'"
        echo "[ ! -f /opt/shoal/lists.sh ] || . /opt/shoal/lists.sh"
        echo "for shoal in ~/.shoal/nodes/*/profile.sh; do [ ! -f \"\$shoal\" ] || . \"\$shoal\"; done"
    } >/etc/profile.d/shoal.sh
}

run_setup() {
    [ -n "$SETUP" ] || return 0
    aws s3 cp --quiet "$FOLDER/setup-$SETUP" /opt/shoal/setup
    echo "$SETUP  /opt/shoal/setup" | sha256sum --check --quiet || return 1
    chmod 700 /opt/shoal/setup
    local status=0
    /opt/shoal/setup >/var/log/shoal-setup.log 2>&1 || status=$?
    aws s3 cp --quiet /var/log/shoal-setup.log "$FOLDER/logs/$INSTANCE/setup.log" || true
    return "$status"
}

echo "$(date -u +%FT%TZ) boot of $INSTANCE, $ROLE of $CLUSTER"
get_aws || fail "the AWS command line cannot be installed; has the subnet a way out?"
(
    while sleep 15; do send_log; done
) &
SENDER=$!
say booting || fail "the bucket $BUCKET cannot be written to"
get_python || fail "Python $PYTHON cannot be installed on this image"
mount_files || fail "the file system $FILES cannot be mounted at $MOUNT"
write_profile
follow_lists || fail "the service that follows the list of nodes cannot be started"
run_setup || fail "the setup script failed; see its log"
start_agent || fail "the agent of the node cannot be started"
kill "$SENDER"
say ready || fail "the bucket $BUCKET cannot be written to"
echo "$(date -u +%FT%TZ) ready"
send_log
[ -n "$AGENT" ] || signal SUCCESS "" # else the agent does, when workers are there
