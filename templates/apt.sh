# Make apt-get ready on a fresh instance: cloud-init is done, no job of the image holds apt's locks, and the lists
# of packages are there. It waits 20 minutes at most, and prints what for.
command -v apt-get >/dev/null || exit 0
if command -v cloud-init >/dev/null; then
  echo "waiting for cloud-init"
  # Its own errors are no reason to give up.
  timeout 600 cloud-init status --wait || true
fi
if command -v systemctl >/dev/null; then
  echo "stopping the image's own updates"
  # Ubuntu lets an upgrade go on for up to 30 minutes: it is not waited for here.
  sudo timeout 120 systemctl stop apt-daily.timer apt-daily-upgrade.timer apt-daily.service \
    apt-daily-upgrade.service unattended-upgrades.service || true
fi
# DPkg::Lock::Timeout does not wait for the lock of the lists.
ends=$(($(date +%s) + 300))
tries=4
until error=$(sudo timeout 120 apt-get -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 update -q 2>&1); do
  echo "apt-get update failed: $error"
  case "$error" in *"get lock"*) ;; *) tries=$((tries - 1)) ;; esac
  if [ "$tries" = 0 ] || [ "$(date +%s)" -ge "$ends" ]; then
    echo "apt-get update failed; the last time: $error" >&2
    # One list that is gone or unsigned keeps no other from being there: the installation says what it lacks.
    ls /var/lib/apt/lists/*Packages* >/dev/null 2>&1 || exit 1
    echo "going on with the lists that are there" >&2
    exit 0
  fi
  sleep 10
done
