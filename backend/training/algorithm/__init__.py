"""M-GRPO from paper to line (arXiv 2511.13288): every formula with its file and function, in the order of a step.

Everything here is pure: arrays and plain values in, arrays out. No file, store, model or configuration is read, and
randomness comes in as a generator.

Notation: query q, rollouts k = 1..K, role a. M is the main agent (the manager), S a sub-agent. Sub-agent a is called
d_k times in rollout k. One *group* is (q, a). A step of `training.trainer` rolls the team out K times on each query and
gives each role's learner the trajectories (`trajectory.Trajectory`: ids, mask of the sampled tokens, log-probs of the
engine). `learning.learner.Learner.train` then goes through this page from top to bottom.

1. Rewards: `rewards.py`

    R_M = a1 format + a2 outcome                          main_reward     0 if the format of M is invalid
    R_S = b1 format + b2 outcome + b3 expert              sub_reward      0 if the format of S is invalid
    outcome = mean over scenarios of squash(net return / volatility)      outcome_score
    expert of the market analyst: proper score of its distribution        brier_score
    expert of the risk analyst: its loss quantile, and what its           pinball_score,
        reductions and vetoes were worth                                  intervention_value
    expert of the trader: implementation shortfall                        shortfall_score

   All parts lie in [0, 1]. The outcome is the team's; it is 0 for S where the format of M is invalid. The broadcast of
   the outcome can be replaced by what a role changed of it, D_a = v(N) - v(N without a) or its Shapley value:
   `team_credit.py`, Counterfactual and Shapley. What the rollouts are scored with is in
   `training.rollout.scoring`; the replay without a role's effect is in `training.rollout.role_outcomes`.

2. Alignment: `alignment.py`

    d = the smallest d with P(d_k <= d) >= 0.99           target_count, of credit.calls_histogram
    w of each call of a group; sum over the group = 1     align
        duplicate_drop   m / (d K_eff)                    d - d_k random copies, or d_k - d random drops
        fractional       1 / (K_eff d_k)                  its exact expectation
        none             1 / (d_1 + ... + d_K)            the ablation

   K_eff counts the rollouts with d_k >= 1. A rollout with d_k = 0 contributes nothing.

3. Advantages: `advantages.py`

    A = (R - mean) / sigma, within (q, a), weighted by w,    group_advantages
        population sigma; 0 in a group without spread
    A among valid calls, -penalty for an invalid one         advantages_of_valid

4. Credit: `credit.py` puts 1 to 3 together for one role

    rewards and weights of the role's calls               score_main, score_sub
    their advantages; roles never share a statistic       assign_credit, which calls group_advantages

5. Objective: `recipes.py` over `objective.py`, maximized for each role apart

    r = pi_proximal / pi_behavior, truncated             importance_weights
    rho = pi_new / pi_proximal: token, sequence           policy_ratio
        or trajectory
    min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)  clipped_values
    sg(clip(rho, ...)) A log pi_new                       weighted_logps (CISPO)
    J = sum w (value) / total                             Recipe.objective; total: rollouts count, never calls
    KL(pi_new || pi_ref), k3 with an unbiased gradient    kl_tokens

   The loss -(J - kl KL + beta H) of a micro-batch and the optimizer step are in `learning.role_trainer`
   (`PolicyGradient`, `RoleTrainer.optimizer_step`). No gradient crosses roles.

From a step to an advantage: Trainer.step, LearnerPool.train_step, Learner.train, assign_credit, Recipe.advantages.
"""
