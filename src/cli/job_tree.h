// JobTree: a job and the child jobs below it, for commands with --tree.
//
// Threads: one.
#pragma once

#include <functional>
#include <string>

#include "app/api_client.h"
#include "base/error.h"
#include "cli/shared.h"
#include "cli/terminal.h"
#include "json/value.h"

namespace ae::cli {

// Shows one job of the tree, and returns its view. Without --json it prints the view itself.
using ShowJob = std::function<Result<Value>(app::ApiClient& client, const std::string& id)>;
// Shows the job and the jobs below it: each before its children, these in the order of their calls.
// With --json all views are one document, {jobs: [{depth, parent, view}], more}. Notes on stderr if
// there are more than are shown.
Status print_tree(const CommonOptions& options, const std::string& id, Terminal& terminal,
                  const ShowJob& show);

}  // namespace ae::cli
