#include "runtime/driver/ledger_row.h"

#include "engine/heart/side_record.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::runtime {

std::string_view ledger_state(const Outcome& outcome) {
  switch (outcome.kind) {
    case OutcomeKind::success:
      return "COMMITTED";
    case OutcomeKind::failure:
      return outcome.definite ? "FAILED" : "UNKNOWN";
    case OutcomeKind::input_required:
      return "FAILED";  // no unknown outcome; another try follows
    default:
      return "UNKNOWN";
  }
}

store::LedgerRow ledger_row(const JobId& job, const engine::Invocation& call,
                            std::string_view state, const Value& note) {
  Value record = Value::object({{field::arguments_hash, to_hex(call.arguments_hash)},
                                {field::attempt_id, call.attempt.text},
                                {field::deadline, to_text(call.deadline)},
                                {field::external_key, call.external_key.text},
                                {field::idempotency_key, call.key.text},
                                {"tool", call.tool}});
  if (!note.is_null()) record = record.with(field::note, note);
  const std::string place = engine::ledger_location(job, call.id, call.try_no, state);
  return {call.id, call.try_no, std::string(state),
          canonical(engine::with_checksum(place, record))};
}

Result<Value> read_ledger(const JobId& job, const store::LedgerRow& row) {
  return engine::read_side_record(
      engine::ledger_location(job, row.invocation, row.try_no, row.state), row.record);
}

}  // namespace ae::runtime
