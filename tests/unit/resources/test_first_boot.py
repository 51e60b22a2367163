"""What an instance does at first boot: valid cloud-init, kept secrets, a proof that the launcher accepts."""

import stat
import subprocess
import sys

import pytest
import yaml

from dlcloud.model.errors import RecipeError
from dlcloud.resources.texts import recipe_text, template, user_data
from dlcloud.ssh.keys import create_key, is_proof, new_secret
from tests.needs import needs
from tests.programs import find
from tests.unit.resources.conftest import INSTANCE_ID

LIMIT_BYTES = 16 * 1024  # Source: EC2 user guide, user data is limited to 16 KB before encoding
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIFzVuFkGPCIYmp7Yk2HzyVMIyzLqdP2rKAhYb3T0Hh0n"


@pytest.fixture
def key(tmp_path):
    return create_key(tmp_path / "key"), (tmp_path / "key").read_text()


def rendered(public_key, *, secret=None, life_minutes=240):
    return user_data(public_key=public_key, secret=secret or new_secret(), life_minutes=life_minutes)


def script_of(document, name):
    return written_file(document, name)["content"]


def written_file(document, name):
    (written,) = [file for file in document["write_files"] if file["path"].endswith(f"/{name}")]
    return written


def test_user_data_is_a_cloud_config_of_one_key_and_the_timer(key):
    text = rendered(key[0])
    assert text.startswith("#cloud-config\n")
    document = yaml.safe_load(text)
    assert document["ssh_authorized_keys"] == [key[0]]
    assert all(isinstance(word, str) for line in document["runcmd"] for word in line)
    assert '--unit=dlcloud-life --on-active="240min" systemctl poweroff -i' in script_of(document, "dlcloud")


def test_the_watchdog_is_started_once_and_no_shutdown_forbids_logins(key):
    document = yaml.safe_load(rendered(key[0]))
    assert "watchdog" not in str(document["runcmd"])
    assert script_of(document, "dlcloud").count("watchdog.py") == 1
    lines = "\n".join(script_of(document, name) for name in ("dlcloud", "watchdog.py")).splitlines()
    assert not [line for line in lines if line.startswith(("shutdown", '"shutdown'))]


def test_user_data_is_small_and_holds_no_private_key(key):
    text = rendered(key[0])
    assert len(text.encode()) < LIMIT_BYTES
    assert "PRIVATE KEY" not in text
    body = [line for line in key[1].splitlines() if not line.startswith("-----")]
    assert not any(line in text for line in body)


def test_the_secret_is_readable_by_root_alone(key):
    secret = new_secret()
    text = rendered(key[0], secret=secret)
    assert text.count(secret) == 1
    written = written_file(yaml.safe_load(text), "host_proof.py")
    assert secret in written["content"]
    assert written["permissions"] == "0700"


def test_nothing_is_left_to_be_filled_in(key):
    assert "@" not in rendered(key[0]).replace("\\@", "").replace(key[0], "")


def test_the_same_words_give_the_same_text_as_a_repeated_request_needs(key):
    secret = new_secret()
    assert rendered(key[0], secret=secret) == rendered(key[0], secret=secret)


@pytest.mark.parametrize("comment", ['"quoted" \\back', "#: - {x}", "é ü 漢", "50% @LIFE@"])
def test_any_comment_of_a_key_survives(key, comment):
    line = f"{key[0]} {comment}"
    assert yaml.safe_load(rendered(line))["ssh_authorized_keys"] == [line]


@needs("cloud-init")
def test_cloud_init_accepts_it(key, tmp_path):
    """Debian's and Ubuntu's own check, where it is installed."""
    program = find("cloud-init")
    (tmp_path / "user-data").write_text(rendered(key[0]))
    done = subprocess.run(
        [program, "schema", "--config-file", str(tmp_path / "user-data")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def prove(root, metadata, text):
    """Run the script as the instance does; returns what it wrote."""
    folder = root / "var/lib/dlcloud"
    folder.mkdir(parents=True, mode=0o700)
    script = folder / "host_proof.py"
    script.write_text(script_of(yaml.safe_load(text), "host_proof.py"))
    environment = {"DLCLOUD_ROOT": str(root), "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE)
    ssh = root / "etc/ssh"
    ssh.mkdir(parents=True)
    # Written whole, as ssh-keygen's own start-up order on an instance does not promise it to be there yet.
    (ssh / "new").write_text(f"ssh-ed25519 {HOST_KEY} root@ip-10-0-0-1\n")
    (ssh / "new").rename(ssh / "ssh_host_ed25519_key.pub")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()
    return folder / "host-proof"


def test_the_instance_proves_its_host_key_and_no_other(key, metadata, tmp_path):
    secret = new_secret()
    proof = prove(tmp_path / "root", metadata, rendered(key[0], secret=secret))
    shown = proof.read_bytes()
    assert is_proof(shown, secret, INSTANCE_ID, HOST_KEY)
    assert not is_proof(shown, secret, INSTANCE_ID, HOST_KEY.replace("Fz", "Fy"))
    assert not is_proof(shown, secret, "i-0123456789abcdef1", HOST_KEY)
    assert not is_proof(shown, new_secret(), INSTANCE_ID, HOST_KEY)


def test_the_proof_can_be_read_by_the_login_user(key, metadata, tmp_path):
    proof = prove(tmp_path / "root", metadata, rendered(key[0]))
    assert stat.S_IMODE(proof.stat().st_mode) == 0o644
    assert stat.S_IMODE(proof.parent.stat().st_mode) == 0o755


@pytest.mark.parametrize("script", ["touch {timer}", "true", "exit 1"])
def test_an_instance_without_a_timer_of_its_end_proves_nothing(key, tmp_path, script):
    text = script_of(yaml.safe_load(rendered(key[0])), "host_proof.py").removesuffix("\nmain()\n")
    timer, per_boot = tmp_path / "dlcloud-life.timer", tmp_path / "per-boot"
    per_boot.write_text(f"#!/bin/sh\n{script.format(timer=timer)}\n")
    per_boot.chmod(0o755)
    names = {}
    exec(compile(text, "host_proof.py", "exec"), names)
    names |= {"TIMER": str(timer), "PER_BOOT": str(per_boot)}
    if script.startswith("touch"):
        names["require_end"]()
        return
    with pytest.raises((OSError, subprocess.CalledProcessError)):
        names["require_end"]()


def test_a_recipe_is_a_file_first_and_then_a_bundled_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, path = recipe_text("quickstart")
    assert path is None
    assert "name: quickstart" in text
    (tmp_path / "quickstart").write_text("mine")
    assert recipe_text("quickstart") == ("mine", (tmp_path / "quickstart").relative_to(tmp_path))


def test_an_unknown_recipe_leads_to_the_list_of_bundled_ones(tmp_path):
    with pytest.raises(RecipeError) as caught:
        recipe_text(str(tmp_path / "missing.yaml"))
    assert "missing.yaml" in caught.value.message
    assert caught.value.hint.startswith("dlcloud recipes ")


def test_a_recipe_that_is_not_text_is_an_error(tmp_path):
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot read"):
        recipe_text(str(tmp_path / "r.yaml"))


def test_every_template_that_is_sent_compiles():
    for name in ("environment.py", "job.py"):
        compile(template(name), name, "exec")
