"""What a prediction leaves to a race."""

from decimal import Decimal

from dlcloud.model.instance import Market
from dlcloud.prediction.offers import PredictedJob, PredictedOffer, candidates_of
from dlcloud.prediction.predictor import Estimate


def offer(name, low, middle, high, usd="0.1"):
    estimate = Estimate(instance_type=name, throughput=middle, low=low, high=high)
    return PredictedOffer(estimate=estimate, listed=True, hourly_usd={Market.ON_DEMAND: Decimal(usd)})


def test_a_race_is_left_those_whose_intervals_reach_the_cheapest():
    offers = (offer("best", 90, 100, 110), offer("near", 80, 88, 95), offer("dear", 10, 11, 12))
    job = PredictedJob(workload="w", case="c", setting="s", unit="images/s", offers=offers)
    assert candidates_of([job], Market.ON_DEMAND) == ("best", "near")
    assert candidates_of([job], Market.ON_DEMAND, most=1) == ("best",)
    assert candidates_of([], Market.ON_DEMAND) == ()


def test_a_race_begins_with_the_types_chosen_for_it_and_the_rest_follows_by_cost():
    offers = (offer("best", 90, 100, 110), offer("near", 80, 88, 95), offer("other", 40, 50, 60))
    job = PredictedJob(
        workload="w", case="c", setting="s", unit="i/s", offers=offers, race=("best", "other", "unsold")
    )
    assert candidates_of([job], Market.ON_DEMAND) == ("best", "other", "near")


def test_settings_of_one_case_compete_for_the_race():
    slow = PredictedJob(workload="w", case="c", setting="fp32", unit="i/s", offers=(offer("a", 9, 10, 11),))
    fast = PredictedJob(
        workload="w", case="c", setting="int8", unit="i/s", offers=(offer("b", 90, 100, 110),)
    )
    assert candidates_of([slow, fast], Market.ON_DEMAND) == ("b",)
