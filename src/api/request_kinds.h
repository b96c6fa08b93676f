// kRequestKinds: the kinds of open requests, as named in responses and as stored in rows of jobs.
//
// Threads: constants.
#pragma once

#include <array>
#include <string_view>

#include "inspect/request_kind.h"
#include "store/pending.h"

namespace ae::api {

struct NamedKind {
  std::string_view name;
  store::PendingKinds kind;
};
inline constexpr std::array kRequestKinds{
    NamedKind{to_text(engine::RequestKind::call), store::pending::call},
    NamedKind{to_text(engine::RequestKind::wait), store::pending::wait},
    NamedKind{to_text(engine::RequestKind::question), store::pending::question},
    NamedKind{to_text(engine::RequestKind::confirmation), store::pending::confirmation},
    NamedKind{to_text(engine::RequestKind::unknown_outcome), store::pending::unknown_outcome},
    NamedKind{to_text(engine::RequestKind::budget), store::pending::budget}};

}  // namespace ae::api
