-- What the scripts begin with that change jobs. Each is a named call of a sender that has one call under way
-- at a time.
-- `sequence` is the call's name, "@" and the sender's, and the names of the calls that may precede it.
--
-- A job has its payload in `payload`, and is in exactly one of four sorted sets:
--   due      waits; the score is its due time
--   claimed  waits, but a worker has it on its wheel; the score is the end of that worker's lease
--   running  was delivered; the score is the end of the lease
--   dead     ran out of attempts, or was buried; the score is when
-- `state` has "holder attempts due max_attempts error" for each job that is claimed, was ever started or has
-- failed: the holder is the name of the take that has claimed the job, "-" while nobody holds it, and begins
-- with "!" once a job that runs has been cancelled; `max_attempts` is the number of attempts under which it was
-- started last, "-" for one that was never delivered or has failed for its payload since; the error is that of
-- its last attempt, and may be missing.
-- `repeats` has the grid of each job that comes again after it was done: its first point, and its period.
-- `watching` and `idle` have the workers that listen and have room for a job; the score is until when a
-- worker counts as there. Those in `watching`, a few, look when a job becomes due and are told of one that is
-- due earlier. Those in `idle` are told when one of the few has no more room. So a due job costs a few takes,
-- however many workers are idle.
-- `settings` has "paused" while no job may start, "running": how many may run at once, unless any
-- number may, and "keep": how many dead jobs are kept, and for how long.
-- `last_calls` has the last call of each sender: its name, its time and its answer. A call that is sent
-- again answers as it did at first. One that finds another call than those that may precede it is refused: it
-- comes late, behind its successor, or its sender is a copy of another.
-- In a cluster, each key also has an entry of nobody, NOBODY, so that it always exists: while a slot moves
-- to another node, Redis runs no script with a key that does not.
local due, claimed, running, dead, state, payload, watching, idle, repeats, settings, last_calls = unpack(KEYS)
local sequence, channel = unpack(ARGV)
local call, match = redis.call, string.match
local name, sender, before = match(sequence, '^([^ @]+)@?(%S*)(.*)$')

-- Redis' clock, in microseconds.
local function clock()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local now = clock()

-- Where another program has written to one of the keys, a script would stop halfway. So each key is read or
-- has its type looked at before anything is written: these here, others by what each script reads, and the rest
-- by `wrong_type`, which costs a call for each key.
local paused, max_running = unpack(call('HMGET', settings, 'paused', 'running'))
local is_paused = paused ~= false
local idle_workers = call('ZCOUNT', idle, '-inf', '(+inf')
-- What these have is counted after the writes.
if max_running then
  call('ZCARD', running)
  call('ZCARD', claimed)
end
local past, last_answer = match(call('HGET', last_calls, sender) or '', '^(%S+) %d+ (.*)$')
local is_resent = past == name
local is_late = past and not is_resent and not string.find(before .. ' ', ' ' .. past .. ' ', 1, true)

-- All that follows is in a function, as what is above it is passed on from function to function there. Lua
-- searches for each variable of its own that a function uses whenever it makes that function, which took a
-- tenth of a short call.
return (function()

-- Returns an error if one of these sorted sets, or one of these hashes, is something else.
local function wrong_type(sets, hashes)
  local function find(kind, keys)
    for _, key in ipairs(keys) do
      local found = call('TYPE', key).ok
      if found ~= kind and found ~= 'none' then return redis.error_reply('WRONGTYPE ' .. key) end
    end
  end
  return find('zset', sets) or find('hash', hashes)
end

-- Lua writes 14 digits of a number unless it is told to write all. A score that is none of ours may be
-- anything. `%.0f` would take several times as long, which is a tenth of all that a job costs, and `%d` has
-- 32 bits on some machines.
local function exact(value)
  value = math.max(0, math.min(value, 9e15))
  if value % 1 ~= 0 then value = math.floor(value + 0.5) end
  local low = value % 1e9
  if low == value then return string.format('%d', value) end
  return string.format('%d%09d', (value - low) / 1e9, low)
end

-- In place of its `max_attempts`, of a job that was never delivered.
local NEVER = '-'

-- Who holds a job, its attempts, its due time, its `max_attempts` and its last error. Of one whose state is
-- lost or damaged: nobody, none and now.
local function parse(stored)
  local held_by, attempts, at, max_attempts, failure = match(stored or '', '^(%S+) (%d+) (%d+) ([%d-]+) ?(.*)$')
  if not held_by or #attempts > 9 or #at > 16 or (max_attempts ~= NEVER and not tonumber(max_attempts)) then
    return '-', '0', exact(now), NEVER, ''
  end
  return held_by, attempts, at, max_attempts, failure
end

local function read(id)
  return parse(call('HGET', state, id))
end

local function state_of(holder, attempts, at, max_attempts, failure)
  local head = holder .. ' ' .. attempts .. ' ' .. at .. ' ' .. max_attempts
  return failure == '' and head or head .. ' ' .. failure
end

local function write(id, ...)
  call('HSET', state, id, state_of(...))
end

-- A job is put in its new place before it leaves the old one: where a command fails midway, none is nowhere.
local function to_due(from, id, attempts, at, max_attempts, failure)
  call('ZADD', due, at, id)
  if from ~= due then call('ZREM', from, id) end
  if attempts == '0' and max_attempts == NEVER and failure == '' then
    call('HDEL', state, id)
  else
    write(id, '-', attempts, at, max_attempts, failure)
  end
end

local function delete(from, id)
  call('ZREM', from, id)
  call('HDEL', state, id)
  call('HDEL', payload, id)
  call('HDEL', repeats, id)
end

-- Returns the first point of a grid and its period, or nothing for a job that does not come again.
local function grid_of(stored)
  local first, every = match(stored or '', '^(%d+) ([1-9]%d*)$')
  if not every then return nil end
  return tonumber(first), tonumber(every)
end

-- Returns the last point of a grid up to a time, or nothing before its first point.
local function last_point(first, every, time)
  if time < first then return nil end
  return time - (time - first) % every
end

-- Returns the point for which a job is due next that was due at `at`: the last one that has passed since
-- then, which makes up for all that have, or the next one.
local function next_point(first, every, at)
  local passed = last_point(first, every, now)
  if not passed then return first end
  return passed > tonumber(at) and passed or passed + every
end

-- Lets a job that comes again wait for the next point of its grid.
local function come_again(from, id, at, first, every)
  to_due(from, id, '0', exact(next_point(first, every, at)), NEVER, '')
end

-- How many dead jobs are kept, and for how many microseconds, unless a handle has said so: as Sidekiq does.
local KEPT, KEPT_FOR = 10000, 15768000000000
-- How many a script removes at most.
local TRIMMED = 100

-- Removes the dead jobs that are too many or too old.
local function trim_dead()
  local count, long = match(call('HGET', settings, 'keep') or '', '^(%d+) (%d+)$')
  count, long = tonumber(count) or KEPT, tonumber(long) or KEPT_FOR
  local excess = call('ZCARD', dead) - (call('ZSCORE', dead, '') and 1 or 0) - count
  local gone = {}
  if excess > 0 then gone = call('ZRANGE', dead, 0, math.min(excess, TRIMMED) - 1) end
  if #gone < TRIMMED then
    -- Those that are too many are the oldest, so they come first here too.
    local old = call('ZRANGE', dead, '-inf', '(' .. exact(now - long), 'BYSCORE', 'LIMIT', 0, TRIMMED)
    if #old > #gone then gone = old end
  end
  if not gone[1] then return end
  call('ZREM', dead, unpack(gone))
  call('HDEL', state, unpack(gone))
  call('HDEL', payload, unpack(gone))
end

-- Whether a job has died, or another number of dead jobs is kept: the script trims them before it answers.
local died = false

-- Returns whether the job comes again all the same. Its death is an entry of its own then.
local function bury(from, id, attempts, at, failure)
  local first, every = grid_of(call('HGET', repeats, id))
  local buried = id
  if every then
    local body = call('HGET', payload, id) or ''
    buried = id .. '@' .. at
    while call('HSETNX', payload, buried, body) == 0 do buried = buried .. '+' end
  end
  call('ZADD', dead, exact(now), buried)
  write(buried, '-', attempts, at, NEVER, failure)
  if every then
    come_again(from, id, at, first, every)
  else
    call('ZREM', from, id)
  end
  died = true
  return every ~= nil
end

-- Counts an attempt to deliver a job that failed for its payload. It waits for a second, so that a worker
-- which can may take it.
local function fail(from, id, attempts, at, max_attempts, failure)
  attempts = exact(attempts + 1)
  if tonumber(attempts) >= max_attempts then
    bury(from, id, attempts, at, failure)
  else
    to_due(from, id, attempts, exact(now + 1000000), NEVER, failure)
  end
end

-- Lets go of a job that was cancelled while it ran, once its worker has confirmed that or its lease has
-- ended. It may have been scheduled to repeat again meanwhile. Returns whether it waits then.
local function end_cancelled(from, id)
  local first, every = grid_of(call('HGET', repeats, id))
  if every then
    come_again(from, id, '0', first, every)
  else
    delete(from, id)
  end
  return every ~= nil
end

-- Returns how many more jobs may be in these sets together, under leases that last. Who has died keeps a job
-- there until its lease ends.
local function left_in(...)
  if is_paused then return 0 end
  local left = tonumber(max_running or 'inf') or math.huge
  if left == math.huge then return left end
  for _, set in ipairs({ ... }) do left = left - call('ZCOUNT', set, exact(now), '(+inf') end
  return math.max(left, 0)
end

-- How many workers watch, and how many of the idle are told at most to reach one.
local WATCHERS, TOLD = 2, 8
-- No job has an empty id, and no worker an empty name. Its score is behind every time.
local NOBODY = ''

-- How many idle workers are few enough that each of them looks for a job that has been due for a while, in
-- case those that watch are suspended.
local FEW = 6
-- How long a worker may take to look that was told to, before others are told in its place.
local PROMPT = 300000

-- Publishes an empty message, and returns how many have heard of it. A cluster knows only of those that are
-- connected to this node. A user who may not publish has done everything else.
local function publish(to)
  local heard = redis.pcall('PUBLISH', channel .. ':' .. to, '')
  return type(heard) == 'number' and heard or 0
end

-- Has all workers renew what they hold, whereby they learn what has been cancelled.
local function tell_to_renew()
  publish('renew')
end

-- Tells so many idle workers to look.
local function tell_idle(wanted)
  for _ = 1, TOLD do
    if wanted <= 0 then return end
    local worker = call('ZRANGE', idle, '(+inf', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1)[1]
    if not worker then return end
    call('ZREM', idle, worker)
    wanted = wanted - publish(worker)
  end
end

-- Tells those that watch that a job may be due earlier than they know, or an idle worker where nobody is left
-- that watches.
local function hint()
  -- The end of a job tells of others where no more may run.
  if left_in(running, claimed) == 0 then return end
  local heard = 0
  for _, worker in ipairs(call('ZRANGE', watching, exact(now), '(+inf', 'BYSCORE', 'LIMIT', 0, 2 * WATCHERS + 1)) do
    local reached = publish(worker)
    if reached == 0 then
      -- Who has heard it nevertheless watches again with its next take.
      call('ZREM', watching, worker)
    else
      -- A worker that is suspended still has its connection. One that looks counts as there again.
      call('ZADD', watching, 'LT', exact(now + PROMPT), worker)
    end
    heard = heard + reached
  end
  if heard == 0 then
    tell_idle(1)
  elseif idle_workers > 0 and idle_workers <= FEW then
    publish('later')
  end
end

-- Tells an idle worker of a job that nobody has taken though it has been due for long.
local function hint_if_overdue()
  if idle_workers == 0 or left_in(running, claimed) == 0 then return end
  local first = tonumber(call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
  if first and first + PROMPT < now then tell_idle(1) end
end

-- Removes a worker that has no more room, and lets another one watch in its place.
local function unlist(worker, wanted)
  call('ZREM', idle, worker)
  tell_idle(math.max(call('ZREM', watching, worker), wanted))
end

local function refuse()
  return redis.error_reply('STALE another call of this sender was answered already')
end

-- How long the last call of a sender is remembered that sends no other.
local REMEMBERED = 3600000000

local function remember(answer)
  hint_if_overdue()
  call('HSET', last_calls, sender, name .. ' ' .. exact(now) .. ' ' .. answer)
  if past then return end
  -- Each new sender makes room for others that are long gone.
  local found = call('HRANDFIELD', last_calls, 10, 'WITHVALUES')
  for entry = 1, #found, 2 do
    local at = match(found[entry + 1], '^%S+ (%d+) ')
    if at and now - at > REMEMBERED then call('HDEL', last_calls, found[entry]) end
  end
end

local function is_cluster()
  return redis.acl_check_cmd('CLUSTER', 'MYID') and type(redis.pcall('CLUSTER', 'MYID')) == 'string'
end

-- Once for each sender, which costs the later calls nothing.
if not past and call('EXISTS', unpack(KEYS)) < #KEYS and is_cluster() then
  for _, set in ipairs({ due, claimed, running, dead, watching, idle }) do
    if call('EXISTS', set) == 0 then call('ZADD', set, '+inf', NOBODY) end
  end
  for _, hash in ipairs({ payload, repeats, settings, last_calls }) do
    if call('EXISTS', hash) == 0 then call('HSET', hash, NOBODY, '') end
  end
  if call('EXISTS', state) == 0 then write(NOBODY, '-', '0', '0', NEVER, '') end
end

