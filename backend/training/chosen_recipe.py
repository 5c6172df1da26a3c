"""The recipe and the credit that a configuration chooses, by name or as a class of the user's own."""

from __future__ import annotations

from backend.config.plugins import CREDIT, RECIPE, plugin
from backend.config.training import TrainingConfig
from backend.training.algorithm.recipes import RECIPES, Recipe
from backend.training.algorithm.team_credit import BROADCAST, CREDITS, TeamCredit
from simulator.errors import UserError


def recipe_of(config: TrainingConfig) -> Recipe:
    """The recipe with the settings that it reads. Raises `UserError` for a class that is not a recipe."""
    chosen = RECIPES.get(config.recipe) or plugin(RECIPE, config.recipe)
    if not (isinstance(chosen, type) and issubclass(chosen, Recipe)):
        raise UserError(f"training.recipe = {config.recipe} is not {RECIPE.is_what}: derive your class from Recipe")
    return chosen(config.clip_low, config.clip_high, config.scale_rewards, config.invalid_penalty)


def credit_of(config: TrainingConfig) -> TeamCredit | None:
    """Divides the outcome among the sub-agents; None where each is paid all of it. Raises `UserError` for a class that
    cannot."""
    if config.credit == BROADCAST:
        return None
    chosen = CREDITS.get(config.credit) or plugin(CREDIT, config.credit)
    if not (isinstance(chosen, type) and callable(getattr(chosen, "shares", None))):
        raise UserError(f"training.credit = {config.credit} is not {CREDIT.is_what}: give it that method")
    credit: TeamCredit = chosen()
    return credit
