"""Policies: what answers in an evaluation."""

from __future__ import annotations

from multiors.evaluation.policies.choosing import ACCEPTED_POLICIES, choose_policy
from multiors.evaluation.policies.endpoint import EndpointPolicy
from multiors.evaluation.policies.local import LocalPolicy
from multiors.evaluation.policies.policy import Conversation, Message, Policy, PolicyError, Reply, Sampling, Start
from multiors.evaluation.policies.scripted import NeverCalls, RandomCalls, ScriptedPolicy

__all__ = [
    "ACCEPTED_POLICIES",
    "Conversation",
    "EndpointPolicy",
    "LocalPolicy",
    "Message",
    "NeverCalls",
    "Policy",
    "PolicyError",
    "RandomCalls",
    "Reply",
    "Sampling",
    "ScriptedPolicy",
    "Start",
    "choose_policy",
]
