"""Policies: what answers in an evaluation."""

from __future__ import annotations

from multiors.evaluation.policies.policy import Conversation, Message, Policy, PolicyError, Reply, Sampling, Start

__all__ = ["Conversation", "Message", "Policy", "PolicyError", "Reply", "Sampling", "Start"]
