#include "cli/commands.h"

#include <algorithm>

namespace ae::cli {

extern const Command kInitCommand, kRunCommand, kChatCommand, kDevCommand, kServeCommand,
    kWorkerCommand, kMcpCommand, kCheckCommand, kJobsCommand, kJobCommand, kEventsCommand,
    kTraceCommand, kTranscriptCommand, kReplayCommand, kVerifyCommand, kSignalCommand,
    kMessageCommand, kRequestsCommand, kApprovalsCommand, kApproveCommand, kRejectCommand,
    kPauseCommand, kResumeCommand, kBudgetCommand, kCancelCommand, kResolveCommand, kForkCommand,
    kPlanCommand, kRetryCommand, kMigrateCommand, kBackupCommand, kRestoreCommand, kInspectCommand,
    kRebuildCommand, kCompletionCommand, kRedactCommand, kPruneCommand, kAuditCommand, kKeysCommand,
    kDoctorCommand, kVersionCommand, kDivergenceCommand, kWorkersCommand, kPreflightCommand,
    kRegisterCommand;

namespace {

constexpr const Command* kCommands[] = {
    &kInitCommand,       &kRunCommand,     &kChatCommand,       &kDevCommand,
    &kServeCommand,      &kWorkerCommand,  &kMcpCommand,        &kCheckCommand,
    &kJobsCommand,       &kJobCommand,     &kEventsCommand,     &kTraceCommand,
    &kDivergenceCommand, &kWorkersCommand, &kTranscriptCommand, &kReplayCommand,
    &kVerifyCommand,     &kSignalCommand,  &kMessageCommand,    &kRequestsCommand,
    &kApprovalsCommand,  &kApproveCommand, &kRejectCommand,     &kPauseCommand,
    &kResumeCommand,     &kBudgetCommand,  &kCancelCommand,     &kResolveCommand,
    &kForkCommand,       &kPlanCommand,    &kRetryCommand,      &kMigrateCommand,
    &kBackupCommand,     &kRestoreCommand, &kInspectCommand,    &kRebuildCommand,
    &kCompletionCommand, &kRedactCommand,  &kPruneCommand,      &kAuditCommand,
    &kKeysCommand,       &kDoctorCommand,  &kVersionCommand,    &kPreflightCommand,
    &kRegisterCommand};

}  // namespace

std::span<const Command* const> commands() { return kCommands; }

const Command* find_command(std::string_view name) {
  const auto* const found = std::ranges::find(kCommands, name, &Command::name);
  return found == std::end(kCommands) ? nullptr : *found;
}

std::string_view group_title(Group group) {
  constexpr std::string_view kTitles[] = {"Run", "Inspect", "Respond", "Control", "Maintain"};
  return kTitles[static_cast<std::size_t>(group)];
}

std::vector<Option> declare_common(CommonOptions& options) {
  return {{"--store",
           "URL",
           &options.store,
           "sqlite:PATH (default sqlite:.aetheris/aetheris.db), postgres://… or memory:",
           {.variable = "AETHERIS_STORE"}},
          {"--json", "", &options.json, "print one JSON value; `events -f` prints one per line"}};
}

}  // namespace ae::cli
