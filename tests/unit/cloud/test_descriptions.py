"""AWS's descriptions, as the local EC2 reads them: all but the documentation, and once."""

import subprocess
import sys

PROGRAM = """
import json, sys
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.session import Session

from dlcloud.cloud.api.descriptions import share_descriptions


def content(model):
    service = ServiceModel(model, "ec2")
    shapes = [service.shape_for(name) for name in service.shape_names]
    members = {shape.name: [*shape.members] for shape in shapes if shape.type_name == "structure"}
    return service.operation_names, [shape.type_name for shape in shapes], members


whole = Loader().load_service_model("ec2", "service-2")
share_descriptions()
less = Loader().load_service_model("ec2", "service-2")
assert content(less) == content(whole)
assert "documentation" in whole["operations"]["RunInstances"]
assert "documentation" not in less["operations"]["RunInstances"]
assert Loader().load_service_model("ec2", "service-2") is less
assert Session().get_component("data_loader") is Session().get_component("data_loader")
print(json.dumps([Loader().file_loader.load_file(f"{sys.argv[1]}/{name}") for name in ("own", "none")]))
"""


def test_descriptions_lack_their_documentation_alone_and_are_read_once(tmp_path):
    member = '{"documentation": {"shape": "Text", "documentation": "What it says."}}'
    (tmp_path / "own.json").write_text(f'{{"documentation": "What it is.", "members": {member}}}')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == '[{"members": {"documentation": {"shape": "Text"}}}, null]\n'
