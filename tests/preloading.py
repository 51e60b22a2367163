"""What a process loads once that forks a child for each dlcloud command, or each daemon."""

import os
import pkgutil
import resource
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType

import botocore.session
from botocore.loaders import create_loader

from dlcloud.cloud.api.clients import Clients
from dlcloud.local import daemon
from dlcloud.local.site_files import SitePaths
from dlcloud.recipe.recipe import read_recipe

RECIPE = "name: any\ninstances: {types: [c5.large]}\nworkload: {command: 'true'}\n"
SERVICES = ("ec2", "iam", "sts", "ssm", "pricing", "service-quotas")


def preload(*packages: ModuleType) -> None:
    """Import all modules of packages, read descriptions of AWS services, and build the models of recipes."""
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    loader = create_loader()
    botocore.session.create_loader = lambda *_: loader
    clients = Clients(region="us-east-1", endpoint_url="http://127.0.0.1:9")
    for service in SERVICES:
        clients.get(service)
    clients.get_without_retries()
    read_recipe(RECIPE, "any.yaml")


def preload_daemon() -> None:
    """Import the local EC2, with the images that moto reads then; what is set for that is taken back."""
    environment, limit = dict(os.environ), resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory() as folder:
        daemon._prepare_moto(SitePaths(folder=Path(folder)))
        daemon._import_service()
    os.environ.clear()
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[0], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    tempfile.tempdir = None
