-- What the scripts begin with that change jobs. Each is a named call of a sender that has one call under way at a time.
-- KEYS: due claimed running dead state payload watching idle repeats last. ARGV: the call's name, "@" and the sender's, and the names of
-- the calls that may precede it, channel, and what each script says.
--
-- A job has its payload in `payload`, and is in exactly one of four sorted sets:
--   due      waits; the score is its due time
--   claimed  waits, but a worker has it on its wheel; the score is the end of that worker's lease
--   running  was delivered; the score is the end of the lease
--   dead     ran out of attempts, or was buried; the score is when
-- `state` holds "token attempts due" for each job that is claimed or was ever started, with the token "-" while nobody holds it, and
-- after that why a dead job could not be delivered.
-- `repeats` holds the grid of each job that comes again after it was done: a point of it, and the distance of two.
-- `watching` and `idle` hold the workers that listen and have room for a job; the score is until when a worker counts as there. Those in
-- `watching`, a few, look when a job becomes due and are told of one that is due earlier. Those in `idle` are told when one of the few
-- has no more room. So a due job costs a few takes, however many workers are idle.
-- `last` holds the last call of each sender: its name, its time and its reply. A repeated call answers as the first did. One that finds
-- another call than those that may precede it is refused: it comes late, behind its successor, or its sender is a copy of another.
-- In a cluster, each key also holds an entry of nobody, NOBODY, so that it always exists: while a slot moves to another node, Redis runs
-- no script with a key that does not.
local due, claimed, running, dead, state, payload, watching, idle, repeats, last = unpack(KEYS)
local call, match = redis.call, string.match
local name, sender, before = match(ARGV[1], '^([^ @]+)@?(%S*)(.*)$')
local channel = ARGV[2]

-- Where something else has written to the payloads, a script would stop halfway. It reads the other keys before it writes to any.
local kind = call('TYPE', payload).ok
if kind ~= 'hash' and kind ~= 'none' then return redis.error_reply('WRONGTYPE ' .. payload) end

-- Redis' clock, in microseconds.
local function clock()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local now = clock()

-- Lua writes 14 digits of a number unless it is told to write all. A score that is none of ours may be anything.
local function exact(value)
  return string.format('%.0f', math.max(0, math.min(value, 9e15)))
end

-- Who holds a job, its attempts and its due time. Of one whose state is lost or damaged: nobody, none and now.
local function parse(stored)
  local owner, attempts, at = match(stored or '', '^(%S+) (%d+) (%d+)')
  if not owner or #attempts > 9 or #at > 16 then return '-', '0', exact(now) end
  return owner, attempts, at
end

local function read(id)
  return parse(call('HGET', state, id))
end

local function write(id, token, attempts, at)
  call('HSET', state, id, token .. ' ' .. attempts .. ' ' .. at)
end

-- A job is put in its new place before it leaves the old one: where a command fails midway, none is nowhere.
local function wait(from, id, attempts, at)
  call('ZADD', due, at, id)
  if from ~= due then call('ZREM', from, id) end
  if attempts == '0' then
    call('HDEL', state, id)
  else
    write(id, '-', attempts, at)
  end
end

-- Returns the last point of a stored grid up to now, and the distance of two. Nothing for a job that does not come again.
local function grid_of(stored)
  local point, every = match(stored or '', '^(%d+) (%d+)$')
  if not every then return nil end
  return now - (now - point) % every, tonumber(every)
end

-- Lets a job that comes again wait for the next point of its grid. Points that have passed since `at`, for which it was due, are made up
-- by one delivery, now.
local function come_again(from, id, at, last_point, every)
  local point = last_point > tonumber(at) and last_point or last_point + every
  wait(from, id, '0', exact(point))
end

-- Returns whether the job comes again all the same. Its death is an entry of its own then.
local function bury(from, id, attempts, at, why)
  local last_point, every = grid_of(call('HGET', repeats, id))
  local buried = id
  if every then
    buried = id .. '@' .. at
    call('HSET', payload, buried, call('HGET', payload, id) or '')
  end
  call('ZADD', dead, exact(now), buried)
  write(buried, '-', attempts, why and at .. ' ' .. why or at)
  if not every then
    call('ZREM', from, id)
    return false
  end
  come_again(from, id, at, last_point, every)
  return true
end

-- Counts an attempt to deliver a job that failed for its payload. It waits for a second, so that a worker which can may take it.
local function fail(from, id, attempts, at, most, why)
  attempts = exact(attempts + 1)
  if tonumber(attempts) >= most then
    bury(from, id, attempts, at, why)
  else
    wait(from, id, attempts, exact(now + 1000000))
  end
end

-- How many workers watch, and how many of the idle are called at most to reach one.
local WATCHERS, CALLS = 2, 8
-- No job has an empty id, and no worker an empty name. Its score is behind every time.
local NOBODY = ''

-- Tells a worker to look, and returns how many have heard of it. A cluster knows only of those that are connected to this node.
-- A user who may not publish has done everything else.
local function tell(worker)
  local heard = redis.pcall('PUBLISH', channel .. ':' .. worker, '')
  return type(heard) == 'number' and heard or 0
end

-- Tells so many idle workers to look.
local function call_idle(wanted)
  for _ = 1, CALLS do
    if wanted <= 0 then return end
    local worker = call('ZRANGE', idle, '(+inf', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1)[1]
    if not worker then return end
    call('ZREM', idle, worker)
    wanted = wanted - tell(worker)
  end
end

-- Tells those that watch that a job may be due earlier than they know, or an idle worker where nobody is left that watches.
local function hint()
  local heard = 0
  for _, worker in ipairs(call('ZRANGE', watching, '-inf', '(+inf', 'BYSCORE', 'LIMIT', 0, 2 * WATCHERS + 1)) do
    local reached = tell(worker)
    -- Who has heard it nevertheless watches again with its next take.
    if reached == 0 then call('ZREM', watching, worker) end
    heard = heard + reached
  end
  if heard == 0 then call_idle(1) end
end

-- Removes a worker that has no more room, and lets another one watch in its place.
local function leave(worker, wanted)
  call('ZREM', idle, worker)
  call_idle(math.max(call('ZREM', watching, worker), wanted))
end

local past, last_reply = match(call('HGET', last, sender) or '', '^(%S+) %d+ (.*)$')
local is_repeated = past == name
local is_late = past and not is_repeated and not string.find(before .. ' ', ' ' .. past .. ' ', 1, true)

local function refuse()
  return redis.error_reply('STALE another call of this sender was answered already')
end

-- How long the last call of a sender is remembered that sends no other.
local REMEMBERED = 3600000000

local function remember(reply)
  call('HSET', last, sender, name .. ' ' .. exact(now) .. ' ' .. reply)
  if past then return end
  -- Each new sender makes room for others that are long gone.
  local found = call('HRANDFIELD', last, 10, 'WITHVALUES')
  for entry = 1, #found, 2 do
    local at = match(found[entry + 1], '^%S+ (%d+) ')
    if at and now - at > REMEMBERED then call('HDEL', last, found[entry]) end
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
  for _, hash in ipairs({ payload, repeats, last }) do
    if call('EXISTS', hash) == 0 then call('HSET', hash, NOBODY, '') end
  end
  if call('EXISTS', state) == 0 then write(NOBODY, '-', '0', '0') end
end

