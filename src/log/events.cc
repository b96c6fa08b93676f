// Which schema an event is written with.
#include "log/events.h"

#include <algorithm>

#include "log/event_type.h"

namespace ae {
namespace {

bool has(const Value& array, std::string_view member) {
  return array.is_array() && std::ranges::any_of(array.items(), [member](const Value& entry) {
           return entry.find(member) != nullptr;
         });
}

// Has a plan a tool that makes no call?
bool records_values(const Value& tools) {
  return tools.is_object() && std::ranges::any_of(tools.members(), [](const Member& tool) {
           return tool.second.find("records") != nullptr;
         });
}

// 2 has no blind, 1 no job that has spent something before it began.
std::uint8_t schema_for(const JobCreated& event) {
  if (!event.blind.is_null()) return 3;
  return event.budget.find("spent") != nullptr ? 2 : 1;
}

// 2 would call a tool whose value is recorded; 1 has no strict conditions.
std::uint8_t schema_for(const PlanGenerated& event) {
  if (records_values(event.task_graph["tools"])) return 3;
  return event.task_graph.find("conditions") != nullptr ? 2 : 1;
}

// 2 lists no unknown call of the origin; 1 has no loop that resumes in the middle.
std::uint8_t schema_for(const ForkImported& event) {
  if (!event.unknown.is_null()) return 3;
  return has(event.commands, "under_way") ? 2 : 1;
}

// 2 leaves a call with an unknown outcome to an operator after its tool is offered again as it was; 1 has no denied call, and
// none that an operator edited.
std::uint8_t schema_for(const DecisionRecorded& event) {
  if (event.kind == "in_doubt" && event.state == "resend") return 3;
  return event.kind == "approval" && (event.state == "denied" || event.state == "edited") ? 2 : 1;
}

std::uint8_t schema_for(const ToolInvocationStarted&) { return 2; }

// 3 applies a check to this try that was made before its end; 2 waits for what has been answered; 1 takes an outcome that it
// does not know for `unknown`.
std::uint8_t schema_for(const ToolInvocationFinished& event) {
  if (event.at) return 4;
  if (event.settled) return 3;
  return event.outcome == "input_required" ? 2 : 1;
}

// 1 takes a call of an earlier process for one that has ended.
std::uint8_t schema_for(const JobRunning& event) { return event.opened_at ? 2 : 1; }

// 1 takes the event that ends such a park for a damaged log.
std::uint8_t schema_for(const JobParked& event) { return event.until == "version" ? 2 : 1; }

// 1 lists no call whose outcome stayed unknown.
std::uint8_t schema_for(const JobCompleted& event) { return event.in_doubt.is_null() ? 1 : 2; }

std::uint8_t schema_for(const auto&) { return 1; }

}  // namespace

EventType type_of(const EventBody& body) noexcept {
  return std::visit(
      []<class E>(const E& event) {
        if constexpr (std::is_same_v<E, UnknownEvent>) {
          return event.type;
        } else {
          return E::kType;
        }
      },
      body);
}

std::uint8_t schema_of(const EventBody& body) noexcept {
  return std::visit([](const auto& event) { return schema_for(event); }, body);
}

}  // namespace ae
