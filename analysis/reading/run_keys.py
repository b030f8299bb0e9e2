"""Decides which configuration keys identify a run (names, paths, times, seeds) and are not
settings. Needed for runs in plain folders, which declare no axes. Pure."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

_PLACES = frozenset(
    """
    log_path log_dir log_folder logdir logging_dir log_file output_dir output_path out_dir outdir
    save_dir save_path run_dir work_dir working_dir workdir checkpoint_dir ckpt_dir results_dir
    result_dir tensorboard_dir hydra_run_dir behavior_if_log_dir_exists timestamp created created_at
    started_at start_time launched_at launch_time date datetime hostname host node node_name
    nodelist pid uuid job_id jobid slurm_job_id slurm_jobid array_task_id task_id wandb_id
    wandb_run_id wandb_url mlflow_run_id run_id run_uuid exp_id trial_id
    """.split()  # noqa: SIM905 - shorter than a list of quoted words
)
_LABELS = frozenset(
    """
    run_name exp_name experiment_name experiment job_name session_name display_name wandb_name
    wandb_run_name wandb_group wandb_tags group_name trial_name tags notes comment description
    """.split()  # noqa: SIM905 - shorter than a list of quoted words
)


class OwnKeys(NamedTuple):
    """The keys that identify runs: `seeds`, and others that are `left_out` of the settings. A
    `doubtful` key has a different string in each run: it may identify runs, but counts as a
    setting. The user declared that `ignored` keys are no settings and `named` keys are seeds."""

    seeds: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


NO_KEYS = OwnKeys()


def is_place(key: str) -> bool:
    """Return whether a key's last part names a path, a time, a machine or an id of a run."""
    return _last(key) in _PLACES


def is_label(key: str) -> bool:
    """Return whether a key's last part names a run, a group of runs, or a comment about them."""
    return _last(key) in _LABELS


def own_keys(
    configs: Sequence[Mapping[str, Any]], ignored: Collection[str] = (), named: Collection[str] = ()
) -> OwnKeys:
    """Return the keys that identify runs, judged by the flat configurations of all runs. `named`
    are the user's seed keys. If `named` is empty, the seed keys are the keys with names such as
    `seed` or `data_seed` and with integer values."""
    keys = dict.fromkeys(key for config in configs for key in config)
    seeds = [key for key in keys if (key in named if named else _is_seed(key, configs))]
    out = {key for key in keys if key in ignored or is_place(key)} | set(seeds)
    labels = [key for key in keys if key not in out and is_label(key)]
    groups = same_but(configs, {*out, *labels})
    out |= {key for key in labels if all(_names_runs(key, group) for group in groups)}
    differing = {key for key in keys if len({as_text(config.get(key)) for config in configs}) > 1}
    doubtful: list[str] = []
    if len(same_but(configs, out)) == len(configs) > 1:
        doubtful = [
            key
            for key in keys
            if key not in out
            and all(isinstance(config.get(key), str) for config in configs)
            and len({config[key] for config in configs}) == len(configs)
        ]
    left_out = tuple(key for key in keys if key in out and key in differing and key not in seeds)
    return OwnKeys(tuple(seeds), left_out, tuple(doubtful), tuple(ignored), tuple(named))


def same_but(
    configs: Sequence[Mapping[str, Any]], without: Collection[str]
) -> list[list[Mapping[str, Any]]]:
    """Group configurations that are equal in all keys except `without`."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for config in configs:
        same = as_text({key: value for key, value in config.items() if key not in without})
        groups.setdefault(same, []).append(config)
    return list(groups.values())


def _names_runs(key: str, group: Sequence[Mapping[str, Any]]) -> bool:
    return len({as_text(config.get(key)) for config in group}) in (1, len(group))


def _is_seed(key: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    values = [config[key] for config in configs if key in config]
    integers = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return integers and bool(re.search(r"(^|[._-])seed$|[a-z]Seed$|^SEED$", key.rpartition(".")[2]))


def _last(key: str) -> str:
    return key.rpartition(".")[2].lower().replace("-", "_")


def as_text(value: Any) -> str:
    """Return a value as JSON that is equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)
