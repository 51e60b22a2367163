"""Services that moto lacks, as far as dlcloud asks them: the price list and the EC2 quotas."""

import json
from collections.abc import Mapping
from typing import Any

from dlcloud.local.catalogue import Catalogue
from dlcloud.local.quotas import DEFAULT_VCPUS

# Source: Service Quotas, service "ec2": running instances, in vCPUs. From memory of its console, unverified.
_QUOTAS = {
    "L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-34B43A08": "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-417A185B": "Running On-Demand P instances",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
    "L-C4BD4855": "All P5 Spot Instance Requests",
    "L-1945791B": "Running On-Demand Inf instances",
    "L-B5D1601B": "All Inf Spot Instance Requests",
    "L-2C3B7624": "Running On-Demand Trn instances",
    "L-6B0D517C": "All Trn Spot Instance Requests",
}
_HOURS = "Hrs"
# The price list says where a region is; anything else is named by its code.
_LOCATIONS = {"us-east-1": "US East (N. Virginia)", "ap-northeast-1": "Asia Pacific (Tokyo)"}


class UnknownAnswerError(Exception):
    """The request asks for something that is not answered; carries the error code and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def answer_price_list(action: str, asked: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """Answer GetProducts for AmazonEC2 by instance type and region; prices are the catalogue's.

    Raises:
        UnknownAnswerError: It is another action or service.
    """
    if action != "GetProducts" or asked.get("ServiceCode") != "AmazonEC2":
        raise UnknownAnswerError("NotFoundException", "The local price list knows GetProducts of AmazonEC2.")
    wanted = {each["Field"]: each["Value"] for each in asked.get("Filters", [])}
    region = wanted.get("regionCode", "us-east-1")
    kinds = [wanted["instanceType"]] if "instanceType" in wanted else sorted(catalogue.rows)
    products = [_product(kind, region, catalogue) for kind in kinds if kind in catalogue.rows]
    chosen = [product for product in products if product and _fits(product, wanted)]
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(product) for product in chosen]}


def answer_quotas(action: str, asked: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """Answer GetServiceQuota, ListServiceQuotas and the defaults of either, for EC2's vCPU quotas.

    Args:
        action: The API action.
        asked: Its parameters.
        limits: The quotas in vCPUs, by their codes.

    Raises:
        UnknownAnswerError: It is another action, service or quota.
    """
    default = action.endswith(("AWSDefaultServiceQuota", "AWSDefaultServiceQuotas"))
    quotas = {
        code: _quota(code, name, DEFAULT_VCPUS if default else limits[code]) for code, name in _QUOTAS.items()
    }
    known = asked.get("ServiceCode") == "ec2"
    if action in ("ListServiceQuotas", "ListAWSDefaultServiceQuotas") and known:
        return {"Quotas": list(quotas.values())}
    if action in ("GetServiceQuota", "GetAWSDefaultServiceQuota") and known:
        code = asked.get("QuotaCode", "")
        if code in quotas:
            return {"Quota": quotas[code]}
    raise UnknownAnswerError("NoSuchResourceException", "The local cloud has the vCPU quotas of ec2.")


def _product(kind: str, region: str, catalogue: Catalogue) -> dict[str, Any] | None:
    price = catalogue.on_demand_usd(kind, region)
    if price is None:
        return None
    row = catalogue.rows[kind]
    attributes = {
        "instanceType": kind,
        "regionCode": region,
        "location": _LOCATIONS.get(region, region),
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "vcpu": str(row.vcpus),
        "memory": f"{row.memory_mib / 1024:g} GiB",
        "gpu": str(row.gpu_count),
    }
    dimension = {"unit": _HOURS, "pricePerUnit": {"USD": f"{price:.10f}"}, "description": kind}
    term = {"effectiveDate": f"{row.price_date}T00:00:00Z", "priceDimensions": {f"{kind}.hour": dimension}}
    product = {"sku": kind, "productFamily": "Compute Instance", "attributes": attributes}
    return {
        "product": product,
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {f"{kind}.on-demand": term}},
    }


def _fits(product: dict[str, Any], wanted: Mapping[str, str]) -> bool:
    attributes = product["product"]["attributes"]
    return all(attributes.get(field, value).lower() == value.lower() for field, value in wanted.items())


def _quota(code: str, name: str, vcpus: int) -> dict[str, Any]:
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaCode": code,
        "QuotaName": name,
        "Value": float(vcpus),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
