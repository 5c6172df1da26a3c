"""All rules of the training doctor with the words that go with them, and the one call that a trainer makes.

The functions and thresholds are in `rules.py`.
"""

from __future__ import annotations

from backend.training.diagnostics import rules as of
from backend.training.diagnostics.rules import Rule

RULES = (
    Rule(
        "terminal collapse",
        "role",
        "fatal",
        ("{role}/valid", "{role}/degenerate_share", "{role}/calls"),
        f"below {of.LOST_FORMAT:.0%} valid answers while {of.ALL_TIED:.0%} of the groups have equal rewards, for "
        f"{of.SHORT_RUN} steps, of a role with {of.OFTEN_ASKED:g} calls a rollout or more: where all answers are paid "
        "0, no gradient leads back to the format",
        "go back to an earlier checkpoint with a lower training.learning_rate of the role and training.kl above 0; "
        "keep training.rollback_format at 0.9, which undoes such a step",
        of.terminal_collapse,
        points=of.SHORT_RUN,
    ),
    Rule(
        "most answers invalid",
        "role",
        "warning",
        ("{role}/valid",),
        f"below {of.MOSTLY_INVALID:.0%} valid answers over the last third of the run: nobody can use what the role "
        "says, and its rewards tell of the format only",
        "see why under `invalid because of`; a longer warm start or `sft`, engine.constrained, team.retries; for a "
        "language model the prompts and team.max_tokens",
        of.mostly_invalid,
        points=1,
    ),
    Rule(
        "every update skipped",
        "role",
        "fatal",
        ("{role}/skipped_updates", "{role}/updates"),
        f"no update of the role was finite for {of.SHORT_RUN} steps: its parameters have diverged",
        "go back to an earlier checkpoint, lower training.learning_rate of the role, raise training.warmup_steps",
        of.diverged,
        points=of.SHORT_RUN,
    ),
    Rule(
        "engine runs other weights",
        "role",
        "fatal",
        ("{role}/importance/cut_share",),
        f"more than {of.OTHER_WEIGHTS:.0%} of the importance weights are cut, for {of.SHORT_RUN} steps: what was "
        "sampled came from another model than is trained",
        "compare the policy versions of the trajectories with the adapter that the engine serves; restart the engine",
        of.other_weights,
        points=of.SHORT_RUN,
    ),
    Rule(
        "collapse to hold",
        "manager",
        "warning",
        ("team/hold_share",),
        f"{of.STANDS_STILL:.0%} of the decisions send no order, for {of.RUN} steps of stage 2: a manager that stands "
        "still does not find out when advice becomes good. On a market without edge it is right",
        "raise training.stage1_steps so that the sub-agents are worth asking first; training.entropy above 0, "
        "training.temperature 1; begin from `sft`",
        of.collapse_to_hold,
        points=of.RUN,
        stage_2=True,
    ),
    Rule(
        "copies the drift",
        "manager",
        "warning",
        ("team/net_exposure", "team/exposure", "team/market_move", "team/timing"),
        f"over {of.LONG_RUN} steps |net| is {of.ONE_SIDED:.0%} of gross exposure, on the side of the market's drift, "
        f"and exposure and move correlate below {of.TIMING}: it earns what holding earns",
        "compare with `hold` and with the twin without edge in `evaluate`; train on "
        "more coins and on windows of other regimes",
        of.copies_drift,
        points=of.LONG_RUN,
    ),
    Rule(
        "learns the format only",
        "role",
        "warning",
        ("{role}/valid", "{role}/reward/mean"),
        f"in stage 2 valid answers rose by {of.MORE_VALID} and the reward by {of.BETTER_PAID} or more, while the skill "
        f"(expert score; the manager's: the team's outcome) rose by no more than {of.GAIN}",
        "format first: a longer stage 1 (training.stage1_steps, gate_format), a longer warm start or "
        "engine.constrained at serving; then more training.queries_per_step",
        of.format_only,
        points=of.TREND_POINTS,
        stage_2=True,
    ),
    Rule(
        "validity decides the rewards",
        "role",
        "warning",
        ("{role}/reward/validity_share", "{role}/valid"),
        f"more than {of.NOISY_VALIDITY:.0%} of the variance of rewards inside groups is whether the answer was valid, "
        f"for {of.RUN} steps below {of.GATE:.0%} valid: the signal of the decision drowns",
        "stay in stage 1 until its gate opens (training.gate_format 0.97), raise training.stage1_max_steps, allow "
        "team.retries",
        of.validity_noise,
        points=of.RUN,
    ),
    Rule(
        "format weight too low",
        "role",
        "warning",
        ("{role}/reward/format_share", "{role}/valid"),
        f"below {of.GATE:.0%} valid answers without gain over {2 * of.RUN} steps, and the format is less than "
        f"{of.LOW_FORMAT_PAY:.0%} of what a valid answer is paid",
        "raise the first number of training.alpha (manager) or training.beta (sub-agents)",
        of.low_format_weight,
        points=2 * of.RUN,
    ),
    Rule(
        "sub-agent is not learning",
        "sub-agent",
        "warning",
        ("{role}/expert/mean", "{role}/trained"),
        f"the expert score's last third is not above its first by {of.GAIN} and one standard error, over at least "
        f"{of.TREND_POINTS} steps in which it was trained",
        "look whether the score has room above a constant answer; training.practice_queries, more scenario_paths, a "
        "higher share of the expert score in training.beta, another learning rate",
        of.not_learning,
        points=of.TREND_POINTS,
    ),
    Rule(
        "role is silent",
        "role",
        "warning",
        (),
        f"no conversation of the role was learnt from in {of.LONG_RUN} steps of stage 2: it is not asked, or all its "
        "rewards tie",
        "see whether the manager asks it (calls); more training.rollouts_per_query, training.entropy for the manager, "
        "or training.practice_queries",
        of.role_silent,
        points=of.LONG_RUN,
        stage_2=True,
    ),
    Rule(
        "groups without spread",
        "role",
        "warning",
        ("{role}/degenerate_share",),
        f"{of.FEW_DIFFER:.0%} of the groups have equal rewards, for {of.RUN} steps: they cost tokens and teach nothing",
        "more training.rollouts_per_query, a higher training.temperature",
        of.zero_spread,
        points=of.RUN,
    ),
    Rule(
        "alignment variance",
        "sub-agent",
        "warning",
        ("{role}/calls/efficiency",),
        f"the effective number of calls, (Σw)² / Σw² by the alignment's weights, is below {of.EVEN_CALLS:.0%} of the "
        f"calls made, for {of.RUN} steps: few rollouts with few calls bear the step",
        "training.alignment fractional rather than duplicate_drop, fewer turns of "
        "the manager, more training.queries_per_step",
        of.uneven_calls,
        points=of.RUN,
    ),
    Rule(
        "unlearns the warm start",
        "team",
        "warning",
        ("validation/outcome",),
        f"validation/outcome more than {of.LOSS} and twice its noise below step 0, {of.SHORT_RUN} validations in a row",
        "a lower training.learning_rate (1e-4 to 2e-4 for nano, 1e-5 for large models), training.warmup_steps, "
        "training.kl as an anchor",
        of.unlearnt_warm_start,
        points=of.SHORT_RUN + 1,
    ),
    Rule(
        "overfits the training windows",
        "team",
        "warning",
        ("validation/outcome", "team/outcome"),
        f"{of.SHORT_RUN} validations in a row more than {of.LOSS} and twice their noise below the best, while training "
        "windows are better than before it",
        "stop: the best validation's version is kept; more history or coins, a lower training.lora_rank, training.kl",
        of.overfits,
        points=of.SHORT_RUN + 1,
    ),
    Rule(
        "entropy collapse",
        "role",
        "warning",
        ("{role}/entropy",),
        f"entropy below {of.LOW_ENTROPY:.0%} of its first {of.SHORT_RUN} steps and below {of.FEW_NATS} nats a token, "
        f"for {of.RUN} steps: K equal rollouts compare nothing",
        "training.entropy (1e-3 to 1e-2), a higher training.clip_high (0.28), a lower learning rate",
        of.entropy_collapse,
        points=of.SHORT_RUN + of.RUN,
    ),
    Rule(
        "clip share too high",
        "role",
        "warning",
        ("{role}/clip_share",),
        f"more than {of.MUCH_CLIPPED:.0%} of the tokens are clipped, for {of.SHORT_RUN} steps: the later updates of a "
        "step learn little",
        "a lower training.learning_rate or fewer training.minibatches",
        of.much_clipped,
        points=of.SHORT_RUN,
    ),
    Rule(
        "ratio tail",
        "role",
        "warning",
        ("{role}/ratio/max",),
        f"a token's probability changes by more than {of.LONG_TAIL:g} times within a step, {of.SHORT_RUN} steps in a "
        "row",
        "a lower training.learning_rate, fewer training.minibatches; training.recipe gspo",
        of.ratio_tail,
        points=of.SHORT_RUN,
    ),
    Rule(
        "far from the warm start",
        "role",
        "warning",
        ("{role}/kl",),
        f"KL to the warm start above {of.FAR_KL} nats a token, for {of.RUN} steps",
        "a higher training.kl, a lower training.learning_rate",
        of.far_from_reference,
        points=of.RUN,
    ),
    Rule(
        "gradient explosion",
        "role",
        "warning",
        ("{role}/grad_norm",),
        f"a norm of {of.SPIKE:g} times the median of all steps before it, of which there are at least {of.RUN}",
        "a lower training.learning_rate, training.max_grad_norm; look at the step's rewards for one odd group",
        of.gradient_spike,
        points=of.RUN + 1,
    ),
    Rule(
        "update skipped",
        "role",
        "warning",
        ("{role}/skipped_updates",),
        "a loss or gradient that was not finite; the update was left out",
        "if it comes again: a lower training.learning_rate",
        of.skipped_update,
        points=1,
    ),
    Rule(
        "engine gap",
        "role",
        "warning",
        ("{role}/engine_gap",),
        f"log-probs of engine and trainer differ by more than {of._GAP} nats at some token, {of.SHORT_RUN} steps in a "
        "row; float32 on both sides gives some 1e-5",
        "see that both compute in the same type; a bfloat16 server is corrected by training.importance_cap",
        of.engine_gap,
        points=of.SHORT_RUN,
    ),
    Rule(
        "stale rollouts",
        "role",
        "warning",
        ("{role}/stale",),
        f"more than {of.STALE:.0%} of a step's conversations come from older weights, for {of.RUN} steps",
        "publish new weights more often; lower training.staleness",
        of.stale_rollouts,
        points=of.RUN,
    ),
    Rule(
        "answers cut off",
        "role",
        "warning",
        ("{role}/truncated",),
        f"more than {of.CUT_OFF:.0%} of the conversations end at the token limit, for {of.RUN} steps",
        "a higher team.max_tokens, or a lower team.thinking_tokens",
        of.cut_off,
        points=of.RUN,
    ),
    Rule(
        "lopsided gradients",
        "role",
        "note",
        ("{role}/gradient_mass",),
        f"more than {of.MASS:.0%} of the roles' gradient norms is this role's, for {of.LONG_RUN} steps. Roles share no "
        "parameter, so that nothing is drowned; their learning rates may want to differ",
        "compare with the role's clip share and ratios before changing its training.learning_rate",
        of.lopsided_gradients,
        points=of.LONG_RUN,
    ),
)
