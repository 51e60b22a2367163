# Prepare this instance to become an image: nothing of it that is secret, or that only one instance may have, stays.
# seal.sh DIGEST; DIGEST names the set-up commands that were run. DLCLOUD_ROOT is set on the local EC2 only.
set -eu
root="${DLCLOUD_ROOT:-}"
commands="$1"

# dlcloud's own: the secret of the host proof, the end of this instance, runs, logs and recipes' commands.
sudo rm -rf "$root/var/lib/dlcloud" "$root/var/lib/cloud/scripts/per-boot/dlcloud"
rm -rf "$HOME/dlcloud"

# The state of cloud-init with the user data, so that new instances boot as such.
sudo cloud-init clean --logs || sudo rm -rf "$root/var/lib/cloud/instance" "$root/var/lib/cloud/instances"
sudo rm -f "$root/var/log/cloud-init.log" "$root/var/log/cloud-init-output.log"

# Identities: of the host, of the machine, and of whom it lets in.
sudo sh -c 'rm -f "$1"/etc/ssh/ssh_host_*_key "$1"/etc/ssh/ssh_host_*_key.pub' sh "$root"
if [ -f "$root/etc/machine-id" ]; then sudo truncate -s 0 "$root/etc/machine-id"; fi
sudo rm -f "$root/var/lib/dbus/machine-id" "$root/var/lib/systemd/random-seed"
rm -f "$HOME/.ssh/authorized_keys" "$HOME/.bash_history"
sudo rm -f "$root/root/.ssh/authorized_keys" "$root/root/.bash_history"
if [ -z "$root" ]; then
  sudo journalctl -q --rotate --vacuum-time=1s || true
  sudo apt-get clean || true
fi

# Downloads, which the environment does not need any more; the cache of a local instance may be shared.
if [ ! -L "$HOME/.cache" ]; then rm -rf "$HOME/.cache/pip" "$HOME/.cache/uv"; fi

mkdir "$HOME/dlcloud"
printf '%s' "$commands" >"$HOME/dlcloud/image"
sync
