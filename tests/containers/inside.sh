# The rest of boot.sh, in the container's own namespaces: its files, then systemd.
set -e
mount -t overlay overlay -o "lowerdir=$image,upperdir=$top/changes,workdir=$top/work" "$top/root"
cd "$top/root"
mount -t proc proc proc
# The kernel's settings are the machine's.
for path in proc/sys proc/sysrq-trigger; do
  [ -e "$path" ] || continue
  mount --bind "$path" "$path"
  mount -o remount,bind,ro "$path"
done
mount -t tmpfs tmpfs sys
for path in /sys/*; do
  mkdir -p ".$path"
  mount --bind "$path" ".$path"
  mount -o remount,bind,ro ".$path"
done
mount -t cgroup2 cgroup2 sys/fs/cgroup
# cloud-init takes the machine for one of EC2's by this.
mkdir -p sys/hypervisor
echo ec2d9f5a-0000-4000-8000-000000000001 >sys/hypervisor/uuid
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
  touch "dev/$name"
  mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for name in stdin=0 stdout=1 stderr=2; do ln -s "/proc/self/fd/${name#*=}" "dev/${name%=*}"; done
for path in $folders; do
  target=".${path#*=}"
  path="${path%%=*}"
  [ -d "$path" ] && mkdir -p "$target" || { mkdir -p "$(dirname "$target")" && touch "$target"; }
  mount --bind "$path" "$target"
  mount -o remount,bind,ro "$target"
done
rm -f etc/resolv.conf
cp /etc/resolv.conf /etc/hosts etc
env | grep -E '^(PIP_|SSL_|(https?|no)_proxy|(HTTPS?|NO)_PROXY)' >>etc/environment || true
metadata="http://$(echo "$METADATA_ADDRESS" | tr ' ' ':')"
mkdir -p etc/systemd/system.conf.d etc/ssh/sshd_config.d
echo "[Manager]
DefaultEnvironment=AWS_EC2_METADATA_SERVICE_ENDPOINT=$metadata" >etc/systemd/system.conf.d/dlcloud.conf
echo "ListenAddress $SSH_ADDRESS" >etc/ssh/sshd_config.d/dlcloud.conf
cat >etc/cloud/cloud.cfg.d/99-dlcloud.cfg <<END
datasource_list: [Ec2]
datasource: {Ec2: {metadata_urls: ["$metadata"], max_wait: 60, strict_id: false}}
network: {config: disabled}
apt: {preserve_sources_list: true}
system_info: {default_user: {name: ubuntu}}
END
for unit in systemd-networkd systemd-resolved systemd-udevd systemd-timesyncd systemd-modules-load getty@tty1 \
  console-getty; do
  ln -sf /dev/null "etc/systemd/system/$unit.service"
done
ln -sf /dev/null etc/systemd/system/systemd-udevd-kernel.socket
ln -sf /dev/null etc/systemd/system/systemd-udevd-control.socket
mkdir -p mnt
pivot_root . mnt
exec chroot . sh -c 'umount -l /mnt && exec env -i container=dlcloud PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  setpriv --bounding-set=-net_admin,-sys_module,-sys_time /lib/systemd/systemd systemd.firstboot=off'
