"""A recipe that states requirements is planned with the types that its account is offered."""

from types import SimpleNamespace

from dlcloud.app.choice import with_chosen_types
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CloudError
from dlcloud.recipe.recipe import RecipeFile, read_recipe
from tests.fakes.clock import FakeClock

TEXT = "name: own\ninstances: {gpu: L4, exclude: gr6.*}\nworkload: {command: 'true'}\n"


def account(error=None, emit=print):
    """Return a context whose account is offered these types, or refuses to answer."""
    regions = {
        "us-east-1": {"g6.2xlarge", "g6.xlarge", "c7i.large"},
        "us-west-2": {"g6.xlarge", "g6.4xlarge"},
    }

    def cloud(_, region):
        def offered(names=()):
            if error is not None:
                raise error
            asked.append((region, *names))
            here = set(names) or regions[region]
            return [one for one in Catalog().every() if one.name in here]

        def find(names, _):
            return [price for price in Catalog().listed_prices("us-east-1") if price.instance_type in names]

        types = SimpleNamespace(offered=offered, names=lambda: sorted(regions[region]))
        return SimpleNamespace(types=types, prices=SimpleNamespace(find=find))

    asked = []
    clouds = SimpleNamespace(cloud=cloud)
    return SimpleNamespace(clouds=clouds, emit=emit, clock=FakeClock(), asked=asked)


def written(text=TEXT):
    return RecipeFile(recipe=read_recipe(text, "r.yaml"), text=text, path="/r.yaml")


def test_the_account_s_offers_are_chosen_from_and_the_text_names_them():
    file, notes = with_chosen_types(account(), written())
    assert file.recipe.instances.types == ["g6.xlarge", "g6.2xlarge"]
    assert read_recipe(file.text, "stored") == file.recipe
    assert file.recipe.hash == written().recipe.hash
    assert notes == (
        "types for gpu: L4, exclude: gr6.*: 2, the cheapest on-demand first",
        "left out by gpu: c7i.large (no GPU)",
        "exclude: no type gr6.* is offered",
    )


def test_without_an_answer_of_ec2_the_bundled_tables_count():
    file, notes = with_chosen_types(account(CloudError("no network")), written())
    assert "g6.16xlarge" in file.recipe.instances.types
    assert notes[-1] == "types and prices are those of the bundled tables: no network"


def test_all_types_are_described_in_the_first_region_only_and_the_first_line_says_what_is_asked():
    shown = []
    context = account(emit=shown.append)
    file, _ = with_chosen_types(context, written(f"{TEXT}region: [us-east-1, us-west-2]\n"))
    assert file.recipe.instances.types == ["g6.xlarge", "g6.2xlarge", "g6.4xlarge"]
    assert context.asked == [("us-east-1",), ("us-west-2", "g6.4xlarge")]
    assert shown[0].message == "looking which instance types 2 regions offer"
