// Roles: what a key may do. The one table that the routes, the docs and the OpenAPI document agree with.
//
// Each route needs one kind of access, each role has some of them: as little as its work needs. Who may answer for people
// (approver) is not who may start work (operator). Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ae::api {

// Spelled as they are stored, but for `operator`, which C++ keeps for itself.
enum class Role : std::uint8_t { none, viewer, operator_, approver, worker, admin };

enum class Access : std::uint8_t {
  open,     // whoever can connect: is the process there?
  offer,    // what is offered here: agents, tools, workers
  view,     // jobs with all their values, what is counted
  operate,  // begins, steers and ends jobs
  answer,   // answers what a job waits for; Api says which answers of which role
  decide,   // speaks for the people who are asked
  manage,   // keys, agents, records
};

bool has_access(Role role, Access access);
// Who may, the least first; never `nobody`.
std::vector<Role> roles_with(Access access);

std::string_view to_text(Role role);
// One that a key can have.
std::optional<Role> role_from_text(std::string_view text);
// "viewer, operator, approver, worker or admin"
std::string roles_text(const std::vector<Role>& roles);
const std::vector<Role>& all_roles();

}  // namespace ae::api
