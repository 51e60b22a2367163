# Make apt-get ready on a fresh instance: cloud-init is done, no job of the image holds apt's locks, and the lists
# of packages are there.
command -v apt-get >/dev/null || exit 0
if command -v cloud-init >/dev/null; then
  # Its own errors are no reason to give up.
  timeout 600 cloud-init status --wait || true
fi
if command -v systemctl >/dev/null; then
  for unit in apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service \
    unattended-upgrades.service; do
    sudo systemctl stop "$unit" || true
  done
fi
for pause in 5 15 30 0; do
  if sudo apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 update -q; then
    exit 0
  fi
  sleep "$pause"
done
echo "apt-get update failed four times" >&2
exit 1
