// Roles: what a key may do.
//
// Each route needs one kind of access; each role has the kinds that its work needs (least
// privilege). An approver decides for users and cannot start work; an operator starts work and
// cannot approve. Threads: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
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

constexpr bool has_access(Role role, Access access) {
  if (access == Access::open || role == Role::admin) return true;
  switch (role) {
    case Role::none:
    case Role::admin:
      return false;
    case Role::viewer:
      return access == Access::offer || access == Access::view;
    case Role::operator_:
      return access == Access::offer || access == Access::view || access == Access::operate ||
             access == Access::answer;
    case Role::approver:
      return access == Access::offer || access == Access::view || access == Access::answer ||
             access == Access::decide;
    case Role::worker:
      return access == Access::offer;
  }
  return false;
}
// The kind of access that exactly these roles have. Other sets of roles do not compile.
consteval Access access_of(std::initializer_list<Role> roles) {
  for (const Access access : {Access::offer, Access::view, Access::operate, Access::answer,
                              Access::decide, Access::manage}) {
    bool is_same = true;
    for (const Role role :
         {Role::viewer, Role::operator_, Role::approver, Role::worker, Role::admin}) {
      const bool is_listed = std::ranges::find(roles, role) != roles.end();
      is_same = is_same && has_access(role, access) == is_listed;
    }
    if (is_same) return access;
  }
  throw "no kind of access has exactly these roles";
}
// The roles with this access, least privileged first; never `none`.
std::vector<Role> roles_with(Access access);

std::string_view to_text(Role role);
// nullopt: not a role of a key.
std::optional<Role> role_from_text(std::string_view text);
// "viewer, operator, approver, worker or admin"
std::string roles_text(const std::vector<Role>& roles);
const std::vector<Role>& all_roles();

}  // namespace ae::api
