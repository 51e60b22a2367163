"""moto's WSGI application with our actions, types and parameters in it. Importing this imports moto."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Literal, cast

from moto.ec2 import urls as ec2_urls
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.ssm.models import Parameter, SimpleSystemManagerBackend, ssm_backends

from dlcloud.local.catalogue import Catalogue
from dlcloud.local.fleets import LocalFleetResponses
from dlcloud.local.images import parameters
from dlcloud.local.machines import Machines
from dlcloud.local.quotas import VcpuQuotas
from dlcloud.local.responses import index_offerings
from dlcloud.local.retired import add_retired_types

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_ACCOUNT = "123456789012"
_SERVICES: tuple[Literal["ec2", "iam", "ssm", "sts"], ...] = ("ec2", "iam", "ssm", "sts")
_LAST_MODIFIED = datetime(2026, 9, 1, tzinfo=UTC)  # the date of the images
# moto leaves two methods of CloudFormation out of it, which to a type checker makes it abstract.
_make_parameter = cast("Callable[..., Parameter]", Parameter)


def open_books(machines: Machines, catalogue: Catalogue, quotas: VcpuQuotas) -> Wsgi:
    """Return moto's application, bound to one site and warm: the first call costs no more than the next."""
    add_retired_types(catalogue)
    bound = {
        "machines": machines,
        "catalogue": catalogue,
        "quotas": quotas,
        "offerings": index_offerings(),
    }
    responses = cast("type[LocalFleetResponses]", type("BoundResponses", (LocalFleetResponses,), bound))
    ec2_urls.url_paths["{0}/"] = responses.dispatch
    ssm_backends.backend = _SeededParameters
    ec2_backends[_ACCOUNT]["us-east-1"].describe_images()
    application = DomainDispatcherApplication(create_backend_app)
    for service in _SERVICES:
        application.app_instances[service] = create_backend_app(service)
    return cast("Wsgi", application)


class _SeededParameters(SimpleSystemManagerBackend):
    """The parameter store of a region, in which the public parameters name our images."""

    # moto looks for a backend's paths beside the module that its class was made in.
    __module__ = SimpleSystemManagerBackend.__module__

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        # moto's own Amazon Linux parameters name images that this cloud does not have.
        self._parameters.latest_amis_loaded = True
        for name, image_id in parameters().items():
            self._parameters[name].append(
                _make_parameter(
                    account_id=account_id,
                    name=name,
                    value=image_id,
                    parameter_type="String",
                    description=None,
                    allowed_pattern=None,
                    keyid=None,
                    last_modified_date=_LAST_MODIFIED,
                    version=1,
                    data_type="aws:ec2:image",
                )
            )
