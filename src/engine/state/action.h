// Actions (base/action.h) as JSON: {act, arguments, choices}. `arguments` has `job_id` and the
// others by their names.
//
// Threads: pure functions.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/action.h"
#include "json/value.h"
#include "log/field_names.h"

namespace ae::engine {

// What an operator can do about an open request, in a view.
inline Value action(std::string_view act, std::vector<Member> arguments,
                    std::initializer_list<std::string_view> choices = {}) {
  return Value::object(
      {{"act", act},
       {field::arguments, Value::object(std::move(arguments))},
       {"choices", Value::array(std::vector<Value>(choices.begin(), choices.end()))}});
}

// The action of an error.
Value action_json(const Action& next);
// The reverse. nullopt: `json` is no action. Arguments that are not text are left out.
std::optional<Action> action_from_json(const Value& json);

}  // namespace ae::engine
