// The table of roles.
#include "api/roles.h"

#include <algorithm>

namespace ae::api {

const std::vector<Role>& all_roles() {
  static const std::vector<Role> roles{Role::viewer, Role::operator_, Role::approver, Role::worker,
                                       Role::admin};
  return roles;
}

std::vector<Role> roles_with(Access access) {
  std::vector<Role> roles;
  for (const Role role : all_roles()) {
    if (has_access(role, access)) roles.push_back(role);
  }
  return roles;
}

std::string_view to_text(Role role) {
  switch (role) {
    case Role::none:
      return "none";
    case Role::viewer:
      return "viewer";
    case Role::operator_:
      return "operator";
    case Role::approver:
      return "approver";
    case Role::worker:
      return "worker";
    case Role::admin:
      return "admin";
  }
  return "none";
}

std::optional<Role> role_from_text(std::string_view text) {
  const auto found = std::ranges::find(all_roles(), text, [](Role role) { return to_text(role); });
  return found == all_roles().end() ? std::nullopt : std::optional(*found);
}

std::string roles_text(const std::vector<Role>& roles) {
  std::string text;
  for (std::size_t i = 0; i < roles.size(); ++i) {
    if (i > 0) text += i + 1 == roles.size() ? " or " : ", ";
    text += to_text(roles[i]);
  }
  return text;
}

}  // namespace ae::api
