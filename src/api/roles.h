// Roles: what a key may do. The one table that the routes, the docs and the OpenAPI document agree
// with.
//
// Each route needs one kind of access; each role has the kinds that its work needs (least
// privilege). An approver decides for users and cannot start work; an operator starts work and
// cannot approve. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ae::api {

// Spelled as stored, except `operator`, which is a C++ keyword.
enum class Role : std::uint8_t { none, viewer, operator_, approver, worker, admin };

enum class Access : std::uint8_t {
  open,     // every client: is the process running?
  offer,    // read what is offered: agents, tools, workers
  view,     // read jobs with all their values, and metrics
  operate,  // start, control and end jobs
  answer,   // answer waits of a job; Api restricts answers by role
  decide,   // decide in place of users: approvals
  manage,   // manage keys, agents, records
};

bool has_access(Role role, Access access);
// The roles with this access, least privileged first; never `none`.
std::vector<Role> roles_with(Access access);

std::string_view to_text(Role role);
// nullopt: not a role of a key.
std::optional<Role> role_from_text(std::string_view text);
// "viewer, operator, approver, worker or admin"
std::string roles_text(const std::vector<Role>& roles);
const std::vector<Role>& all_roles();

}  // namespace ae::api
