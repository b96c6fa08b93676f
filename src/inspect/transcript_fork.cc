// Transcript: the turns and calls that a fork imports from its origin.
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "engine/state/view_values.h"
#include "inspect/field_json.h"
#include "inspect/transcript_internal.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

// The results that a fork imports; null: erased.
const Value& available_results(const ForkImported& fork) {
  static const Value none{};
  return fork.results.erased ? none : fork.results.value;
}

}  // namespace

void Transcript::add_entries(const ForkImported& event) {
  const auto entries = event.commands.read();
  if (!entries) return;
  imported_ = true;
  for (const ForkEntry& entry : *entries) {
    if (entry.turn && !entry.turn_call) {
      add_imported_turn(event, entry);
    } else {
      add_imported_call(event, entry);
    }
  }
  imported_ = false;
  answers_.clear();
}

void Transcript::add_imported_turn(const ForkImported& fork, const ForkEntry& entry) {
  const std::string id = entry.step_id.text;
  const Value none{};
  const bool erased = fork.results.erased;
  const Value& results = available_results(fork);
  const Value& arguments = results[fmt::format("{}/arguments", id)];
  const Value* answer = erased ? &none : results.find(id);
  if (answer == nullptr || (!erased && !arguments.is_object())) return;
  turns_[{entry.node_id, *entry.turn}] = id;
  add_request(id, erased ? nullptr : &arguments, *entry.turn == 0);
  if (erased) redacted_.emplace_back("text");
  add_answer(id, {.model = or_empty(entry.tool), .answer = *answer});
  if (entry.choice) add_tool_choice(id, *entry.choice);
}

void Transcript::add_imported_call(const ForkImported& fork, const ForkEntry& entry) {
  const std::string id = entry.step_id.text;
  const Value none{};
  const bool erased = fork.results.erased && entry.tool;
  const Value* result = erased ? &none : available_results(fork).find(id);
  if (entry.skipped == true || result == nullptr || entry.over == true) return;
  const std::string_view tool = or_empty(entry.tool);
  const Value& failure = (*result)[field::error];
  const bool failed = result->is_object() && result->size() == 1 && failure.is_object() &&
                      entry.result_type && entry.result_type->ends_with("failure");
  if (is_model(tool) && !failed) {
    if (erased) redacted_.emplace_back("text");
    return add_answer(id, {.model = tool, .answer = *result});
  }
  if (entry.turn && entry.turn_call) add_imported_arguments(fork, entry);
  if (erased) redacted_.emplace_back(field::result);
  add(field::result, id,
      {{"child", Value()},
       {field::definite, Value()},
       {field::duration_us, Value()},
       {field::error, failed ? failure : Value()},
       {field::late, false},
       {field::outcome, failed ? "failure" : "success"},
       {field::result, failed ? Value() : *result},
       {"tool", or_null(tool)},
       {field::try_, Value()}});
}

// The arguments of a loop's call: from the answer of its turn, or as edited by an approval.
void Transcript::add_imported_arguments(const ForkImported& fork, const ForkEntry& entry) {
  const std::string id = entry.step_id.text;
  const auto turn = turns_.find({entry.node_id, *entry.turn});
  const Value none{};
  const Value& calls = turn == turns_.end() ? none : answers_[turn->second]["tool_calls"];
  const auto nth = static_cast<std::size_t>(*entry.turn_call);
  const Value call = calls.is_array() && nth < calls.size() ? calls.items()[nth] : Value();
  const Value* edited = available_results(fork).find(fmt::format("{}/edited", id));
  if (fork.results.erased) {
    for (const char* name : {field::arguments, "call_id"}) redacted_.emplace_back(name);
  }
  add("tool_call", id,
      {{field::arguments, edited != nullptr ? *edited : call[field::arguments]},
       {"call_id", call["id"]},
       {"child", Value()},
       {field::effect_class, Value()},
       {"refused", Value()},
       {"tool", field_json(entry.tool)},
       {field::try_, Value()}});
}

}  // namespace ae::engine
