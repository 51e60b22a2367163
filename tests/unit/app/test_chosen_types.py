"""A recipe that states requirements is planned with the types that its account is offered."""

from types import SimpleNamespace

from dlcloud.app.choice import with_chosen_types
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.errors import CloudError
from dlcloud.recipe.recipe import RecipeFile, read_recipe

TEXT = "name: own\ninstances: {gpu: L4, exclude: gr6.*}\nworkload: {command: 'true'}\n"


def account(error=None):
    """Return a context whose account is offered two types, or refuses to answer."""

    def offered():
        if error is not None:
            raise error
        return [one for one in Catalog().every() if one.name in {"g6.2xlarge", "g6.xlarge", "c7i.large"}]

    def find(names, _):
        return [price for price in Catalog().listed_prices("us-east-1") if price.instance_type in names]

    cloud = SimpleNamespace(types=SimpleNamespace(offered=offered), prices=SimpleNamespace(find=find))
    return SimpleNamespace(clouds=SimpleNamespace(cloud=lambda *_: cloud))


def written():
    return RecipeFile(recipe=read_recipe(TEXT, "r.yaml"), text=TEXT, path="/r.yaml")


def test_the_account_s_offers_are_chosen_from_and_the_text_names_them():
    file, notes = with_chosen_types(account(), written())
    assert file.recipe.instances.types == ["g6.xlarge", "g6.2xlarge"]
    assert read_recipe(file.text, "stored") == file.recipe
    assert file.recipe.hash == written().recipe.hash
    assert notes == (
        "types for gpu: L4, exclude: gr6.*: 2, the cheapest on-demand first",
        "left out by gpu: c7i.large (no GPU)",
    )


def test_without_an_answer_of_ec2_the_bundled_tables_count():
    file, notes = with_chosen_types(account(CloudError("no network")), written())
    assert "g6.16xlarge" in file.recipe.instances.types
    assert notes[-1] == "types and prices are those of the bundled tables: no network"
