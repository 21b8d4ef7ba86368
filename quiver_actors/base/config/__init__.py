"""Settings of a node and of its topics.

tree       the settings as frozen structs, with their defaults
kinds      kinds of values: sizes, durations, ...
table      every setting with its key, kind, range and meaning, once
checks     combinations that cannot work
reading    file, environment and flags to a tree, with origins and problems
writing    the commented file of `quiver config init`, docs/configuration.md
"""

from quiver_actors.base.config.reading import check_settings, load_config, parse_config
from quiver_actors.base.config.tree import (
    COMPACTION_MODES,
    DURABILITY_MODES,
    AccessSettings,
    ArchiveSettings,
    LogSettings,
    NodeArchiveSettings,
    NodeSettings,
    RetentionSettings,
    SegmentSettings,
    TierSettings,
    TopicSettings,
    WalSettings,
)
from quiver_actors.base.default_run_dir import default_run_dir

__all__ = [
    "COMPACTION_MODES",
    "DURABILITY_MODES",
    "AccessSettings",
    "ArchiveSettings",
    "LogSettings",
    "NodeArchiveSettings",
    "NodeSettings",
    "RetentionSettings",
    "SegmentSettings",
    "TierSettings",
    "TopicSettings",
    "WalSettings",
    "check_settings",
    "default_run_dir",
    "load_config",
    "parse_config",
]
