"""What a round trip for cents cannot show of AWS, with the reason and the way to see it."""

NOT_SHOWN: tuple[tuple[str, str, str], ...] = (
    (
        "the Free plan's refusal of a type",
        "the self-test's own type is eligible",
        "`dlcloud doctor g6.xlarge`",
    ),
    ("quota codes of GPU families", "asking for a limit launches nothing", "`dlcloud doctor g6.xlarge`"),
    (
        "EFA on several network cards, also beside private access",
        "the smallest such type costs over 5 USD an hour",
        "`dlcloud up RECIPE --dry-run`, then the recipe itself",
    ),
    (
        "ends of `.metal` and Trainium types that take 20 minutes",
        "such types cost too much for a self-test",
        "any `dlcloud up RECIPE` on one: the time of its `down`",
    ),
    (
        "the data folder on a Deep Learning AMI",
        "the cheapest type with an instance store and a GPU costs 0.5 USD an hour",
        "`dlcloud exec CLUSTER -- readlink -f dlcloud/data` after an `up` with `data`",
    ),
    (
        "`--detach`: the controller's role, its policy, KMS and groups of your own",
        "a training and its set-up take more than the self-test's 15 minutes",
        "`dlcloud up RECIPE --cloud aws --detach` of elastic-digits, a few cents",
    ),
    (
        "a cluster placement group that is busy after an end",
        "the self-test's types are in none",
        "`dlcloud up RECIPE`, then `down`, of one with `placement_group: cluster`",
    ),
    (
        "a snapshot that is busy after its image is deregistered",
        "an image is billed by the month, and takes minutes",
        "`dlcloud image CLUSTER`, then `dlcloud gc CLUSTER`",
    ),
    (
        "unfinished uploads of checkpoints",
        "they need a bucket of yours",
        "`aws s3api list-multipart-uploads --bucket BUCKET` after a training with `checkpoints`",
    ),
    (
        "an interruption notice",
        "AWS takes a fee for sending one (Fault Injection Service)",
        "a spot cluster of some days, or `aws fis`",
    ),
    ("the bill", "AWS has it a day later", "`dlcloud cost-report --billed`"),
    ("another owner's clusters", "it takes two callers", "`dlcloud gc --dry-run` by a colleague"),
    ("systemd 257 and block inhibitors", "the image has the systemd that it has", "row b2 names its version"),
)
"""What is not shown; why not; the command that shows it."""
