# Boot an instance of the local EC2 as a container with systemd, cloud-init, OpenSSH and apt of its own:
# sh boot.sh IMAGE CHANGES FOLDER... as root. See ControlClient.set_machine. It has this machine's kernel, network
# and package sources, and these folders to read; what it writes is in a folder below CHANGES.
set -e
image=$1 top="$2/$INSTANCE_ID"
shift 2
export image top folders="$*"
mkdir -p "$top/changes" "$top/work" "$top/root"
group="$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)/dlcloud/$INSTANCE_ID"
mkdir -p "$group"
exec unshare --mount --uts --ipc --pid --fork --kill-child sh -c '
  set -e
  echo $$ >"$1/cgroup.procs"
  exec unshare --cgroup sh "$2"
' sh "$group" "$(dirname "$0")/inside.sh" </dev/null
