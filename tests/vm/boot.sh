# Boot an instance of the local EC2 as a virtual machine: sh boot.sh IMAGE. See ControlClient.set_machine.
image=$1
disk="$DLCLOUD_ROOT/disk.qcow2"
[ -e "$disk" ] || qemu-img create -q -f qcow2 -F raw -b "$image/disk.img" "$disk" 8G
# cloud-init takes the machine for one of EC2's by its serial number, and asks 169.254.169.254 for its metadata.
network="user,id=n0,net=169.254.0.0/16,host=169.254.0.2,dns=169.254.0.3,dhcpstart=169.254.10.15"
network="$network,hostfwd=tcp:$SSH_ADDRESS-:22"
network="$network,guestfwd=tcp:169.254.169.254:80-cmd:nc $METADATA_ADDRESS"
exec qemu-system-x86_64 -accel tcg -cpu max -smp "${VM_CPUS:-1}" -m 1024 -display none -monitor none -serial stdio \
  -smbios "type=1,manufacturer=Amazon EC2,uuid=ec2d9f5a-0000-4000-8000-000000000001,serial=ec2d9f5a-0000-4000-8000-000000000001" \
  -kernel "$image/vmlinuz" -initrd "$image/initrd.img" -append "root=LABEL=cloudimg-rootfs rw console=ttyS0" \
  -drive "file=$disk,if=virtio" -netdev "$network" -device "virtio-net-pci,netdev=n0,mac=$MAC_ADDRESS" -device virtio-rng-pci </dev/null
