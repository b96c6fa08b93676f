// field::…: the names of the fields of log/events.def as constants, for code that reads or writes JSON
// members of the same names. A misspelled name does not compile.
#pragma once

namespace ae {

// X(constant, name)
#define AE_FIELD_NAMES(X)                                   \
  X(agent, agent)                                           \
  X(approval_id, approval_id)                               \
  X(arguments, arguments)                                   \
  X(arguments_hash, arguments_hash)                         \
  X(asked, asked)                                           \
  X(at, at)                                                 \
  X(attempt_id, attempt_id)                                 \
  X(blind, blind)                                           \
  X(budget, budget)                                         \
  X(by, by)                                                 \
  X(carried, carried)                                       \
  X(caught_up, caught_up)                                   \
  X(channel, channel)                                       \
  X(code, code)                                             \
  X(command_id, command_id)                                 \
  X(commands, commands)                                     \
  X(compensate, compensate)                                 \
  X(compensated, compensated)                               \
  X(compensation_invocation_id, compensation_invocation_id) \
  X(correlation_key, correlation_key)                       \
  X(deadline, deadline)                                     \
  X(decision_id, decision_id)                               \
  X(decision_locked, decision_locked)                       \
  X(definite, definite)                                     \
  X(detail, detail)                                         \
  X(drop, drop)                                             \
  X(due_at, due_at)                                         \
  X(duration_us, duration_us)                               \
  X(effect_class, effect_class)                             \
  X(effect_id, effect_id)                                   \
  X(epoch, epoch)                                           \
  X(error, error)                                           \
  X(etag, etag)                                             \
  X(execution_version, execution_version)                   \
  X(expires_at, expires_at)                                 \
  X(external_id, external_id)                               \
  X(external_key, external_key)                             \
  X(external_ref, external_ref)                             \
  X(forked_from, forked_from)                               \
  X(idempotency_key, idempotency_key)                       \
  X(in_doubt, in_doubt)                                     \
  X(input, input)                                           \
  X(input_ref, input_ref)                                   \
  X(invocation_id, invocation_id)                           \
  X(job_version, job_version)                               \
  X(kind, kind)                                             \
  X(labels, labels)                                         \
  X(late, late)                                             \
  X(llm_model, llm_model)                                   \
  X(llm_provider, llm_provider)                             \
  X(llm_temperature, llm_temperature)                       \
  X(max_attempts, max_attempts)                             \
  X(message_id, message_id)                                 \
  X(node_id, node_id)                                       \
  X(not_before, not_before)                                 \
  X(note, note)                                             \
  X(of, of)                                                 \
  X(opened_at, opened_at)                                   \
  X(operation, operation)                                   \
  X(outcome, outcome)                                       \
  X(parent, parent)                                         \
  X(payload, payload)                                       \
  X(plan_hash, plan_hash)                                   \
  X(plan_input_hash, plan_input_hash)                       \
  X(planned_by, planned_by)                                 \
  X(planner_version, planner_version)                       \
  X(priority, priority)                                     \
  X(prompt_hash, prompt_hash)                               \
  X(queue, queue)                                           \
  X(reason, reason)                                         \
  X(request_schema_hash, request_schema_hash)               \
  X(required_capabilities, required_capabilities)           \
  X(reserved, reserved)                                     \
  X(resolution, resolution)                                 \
  X(resource_id, resource_id)                               \
  X(resource_type, resource_type)                           \
  X(response_schema_hash, response_schema_hash)             \
  X(result, result)                                         \
  X(result_of, result_of)                                   \
  X(result_type, result_type)                               \
  X(results, results)                                       \
  X(resumption_context, resumption_context)                 \
  X(retry_after_ms, retry_after_ms)                         \
  X(retryable, retryable)                                   \
  X(schema_version, schema_version)                         \
  X(send_by, send_by)                                       \
  X(settled, settled)                                       \
  X(signal_id, signal_id)                                   \
  X(skipped, skipped)                                       \
  X(source, source)                                         \
  X(state, state)                                           \
  X(step_id, step_id)                                       \
  X(task_graph, task_graph)                                 \
  X(tool_name, tool_name)                                   \
  X(tool_version, tool_version)                             \
  X(traceparent, traceparent)                               \
  X(tracestate, tracestate)                                 \
  X(try_, try)                                              \
  X(uncompensated, uncompensated)                           \
  X(undelivered, undelivered)                               \
  X(unknown, unknown)                                       \
  X(until, until)                                           \
  X(usage, usage)                                           \
  X(value, value)                                           \
  X(verdict, verdict)                                       \
  X(version, version)                                       \
  X(wait_type, wait_type)                                   \
  X(waits, waits)                                           \
  X(withdrawn, withdrawn)                                   \
  X(worker_id, worker_id)                                   \
  X(worker_version, worker_version)

namespace field {
#define AE_FIELD_NAME(constant, name) inline constexpr char constant[] = #name;
AE_FIELD_NAMES(AE_FIELD_NAME)
#undef AE_FIELD_NAME
}  // namespace field

}  // namespace ae
