"""The EC2 actions of Spot Instance requests."""

import re

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.utils import convert_tag_spec

from dlcloud.local.ec2.launch_checks import check_launch, check_profile, check_spot_options
from dlcloud.local.ec2.responses import LocalResponses
from dlcloud.local.ec2.spot import ONE_TIME, SPOT_REQUEST_FILTERS, SpotRequest

_REQUEST_ID = re.compile(r"sir-[0-9a-z]{8}")


class LocalSpotResponses(LocalResponses):
    """The EC2 answers of one site, Spot Instance requests included."""

    def request_spot_instances(self) -> ActionResult:
        """Open requests; instances are launched for them while they wait."""
        self.error_on_dryrun()
        specification = dict(self.params.get("LaunchSpecification") or {})
        behavior = self.params.get("InstanceInterruptionBehavior")
        options = {
            "MaxPrice": self.params.get("SpotPrice"),
            "SpotInstanceType": self.params.get("Type") or ONE_TIME,
            "ValidUntil": self.params.get("ValidUntil"),
            "InstanceInterruptionBehavior": behavior,
        }
        parameters = {
            **specification,
            "InstanceMarketOptions": {
                "MarketType": "spot",
                "SpotOptions": {key: value for key, value in options.items() if value is not None},
            },
        }
        check_spot_options(options)
        check_launch(self.ec2_backend, parameters, parameters.get("InstanceType") or "m1.small")
        check_profile(self.current_account, parameters.get("IamInstanceProfile"))
        tags = convert_tag_spec(self.params.get("TagSpecifications") or [])
        requests = []
        for _ in range(int(self.params.get("InstanceCount") or 1)):
            request = self.spot_request(parameters, {})
            request.add_tags(tags.get("spot-instances-request", {}))
            requests.append(request)
        shown = [request.shown() for request in requests]
        for request in requests:
            self.spot.add(request)
        return ActionResult({"SpotInstanceRequests": shown})

    def describe_spot_instance_requests(self) -> ActionResult:
        """Return the requests that pass every filter."""
        self.error_on_dryrun()
        passes = self.condition(SPOT_REQUEST_FILTERS)
        return ActionResult(
            {"SpotInstanceRequests": [request.shown() for request in self._requests() if passes(request)]}
        )

    def cancel_spot_instance_requests(self) -> ActionResult:
        """Cancel requests; their instances run on."""
        self.error_on_dryrun()
        requests = self._requests()
        self.spot.cancel(requests)
        cancelled = [{"SpotInstanceRequestId": request.id, "State": request.state} for request in requests]
        return ActionResult({"CancelledSpotInstanceRequests": cancelled})

    def _requests(self) -> list[SpotRequest]:
        request_ids = self.params.get("SpotInstanceRequestIds") or []
        for request_id in request_ids:
            if not _REQUEST_ID.fullmatch(request_id):
                message = f'Invalid id: "{request_id}"'
                raise EC2ClientError("InvalidSpotInstanceRequestID.Malformed", message)
        try:
            return self.spot.of(self.ec2_backend, request_ids)
        except LookupError as error:
            message = f"The spot instance request ID '{error.args[0]}' does not exist"
            raise EC2ClientError("InvalidSpotInstanceRequestID.NotFound", message) from error
