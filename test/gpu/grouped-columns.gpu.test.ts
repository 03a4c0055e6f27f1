// A file of its own: a kernel that faults ends the context of its process.
import { groupedSuite } from './grouped.suite.js'

groupedSuite('columns')
